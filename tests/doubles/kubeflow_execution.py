"""Truly runs a compiled graph: its steps as processes, in a child process that stands for the cluster.

Run as a script it is that child: `kubeflow_execution.py <graph.yaml> <arguments.json> <parent>`.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import yaml

_TASK = re.compile(r"Executing task '([\w-]+)'|Task '([\w-]+)' finished with status (\w+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Execution:
    """A graph that runs; `on_change(state, tasks)` is called when a state changes, from a thread."""

    def __init__(self, folder: Path, graph: str, job: str, arguments: dict, env: dict, on_change) -> None:
        folder.mkdir(parents=True)
        self.log = folder / "pipeline.log"
        self._on_change = on_change
        self._terminated = False
        root = next(yaml.safe_load_all(graph))["root"]["dag"]["tasks"]
        self._exit_handlers = {name for name, task in root.items() if "triggerPolicy" in task}
        # Between two tries a cluster waits for half a minute and more.
        impatient = re.sub(r"(backoffDuration|backoffMaxDuration): \S+", r"\1: 1s", graph)
        (folder / "graph.yaml").write_text(impatient.replace("{{$.pipeline_job_name}}", job), encoding="utf-8")
        (folder / "arguments.json").write_text(json.dumps(arguments), encoding="utf-8")
        files = [str(folder / name) for name in ("graph.yaml", "arguments.json")]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), *files, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **env},
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def terminate(self, grace_s: float = 1.0) -> None:
        """SIGTERM to the running step, SIGKILL a moment later; the exit handler runs after it."""
        self._terminated = True
        threading.Thread(target=self._end_step, args=(grace_s,), daemon=True).start()

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        try:
            family = [
                *psutil.Process(self._process.pid).children(recursive=True),
                psutil.Process(self._process.pid),
            ]
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        self._thread.join(timeout=10)

    def _follow(self) -> None:
        before = None
        while True:
            ended = self._process.poll()
            tasks = self._tasks()
            if ended is None:
                state = "CANCELING" if self._terminated else "RUNNING" if tasks else "PENDING"
            else:
                state = "SUCCEEDED" if ended == 0 else "FAILED"
                tasks = {name: "FAILED" if was == "RUNNING" else was for name, was in tasks.items()}
            if (state, tasks) != before:
                before = state, tasks
                self._on_change(state, tasks)
            if ended is not None:
                return
            time.sleep(0.05)

    def _tasks(self) -> dict[str, str]:
        tasks: dict[str, str] = {}
        for began, ended, status in _TASK.findall(_COLOUR.sub("", self.log.read_text(errors="replace"))):
            # A step that fails says nothing at its end, but the next one's beginning does.
            tasks = {name: "FAILED" if began and was == "RUNNING" else was for name, was in tasks.items()}
            tasks[began or ended] = "RUNNING" if began else "SUCCEEDED" if status == "SUCCESS" else "FAILED"
        return tasks

    def _end_step(self, grace_s: float) -> None:
        signals = [signal.SIGTERM, signal.SIGKILL]
        while self._process.poll() is None:
            # In this order, as a task is logged before its process is there: an exit handler is never among them.
            steps = _steps(self._process.pid)
            running = {name for name, state in self._tasks().items() if state == "RUNNING"}
            if running & self._exit_handlers:
                return
            for number in signals if steps else []:
                for step in steps:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        step.send_signal(number)
                psutil.wait_procs(steps, timeout=grace_s)
            if steps:
                # What this runner starts after it, the next step or another try, a cluster would not start at all.
                signals = [signal.SIGKILL]
            time.sleep(0.02)


def _steps(graph: int) -> list[psutil.Process]:
    found = []
    try:
        for process in psutil.Process(graph).children(recursive=True):
            try:
                if "kfp.dsl.executor_main" in process.cmdline() and "python" in process.name():
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        pass
    return found


def main(graph: str, arguments_file: str, parent: int) -> int:
    from kfp import components, local

    from training.processes import die_with_parent

    die_with_parent(parent)
    os.environ["SHARDLINE_DIE_WITH_PARENT"] = str(os.getpid())
    component = components.load_component_from_file(graph)
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(Path(graph).parent / "outputs"),
        raise_on_error=True,
    )
    try:
        component(**json.loads(Path(arguments_file).read_text(encoding="utf-8")))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
