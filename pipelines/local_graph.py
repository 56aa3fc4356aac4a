"""Runs the graph's steps as processes of this machine: `-m pipelines.local_graph <arguments.json> <parent>`.

A process of its own, because kfp prints freely and changes the logging of the process that it runs in; what
people see comes from the event stream instead (see `pipelines.local_run`).
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from kfp import local

from pipelines.finetune import finetune
from pipelines.processes import lock_graph, stop_run
from training.errors import EXIT_FAILED
from training.processes import die_with_parent
from training.run_folder import RunFolder


def main(arguments_file: str, parent: int) -> int:
    """Run `finetune` with the arguments in a JSON file; outputs go beside it. Returns the exit code.

    Args:
        arguments_file: Path of the JSON file.
        parent: Process id of the command that follows the run; without it, nothing goes on.
    """
    os.environ["SHARDLINE_DIE_WITH_PARENT"] = str(os.getpid())  # see components.step
    path = Path(arguments_file)
    arguments = json.loads(path.read_text(encoding="utf-8"))
    folder = RunFolder(arguments["store"], arguments["run"])

    def on_signal(signum: int, frame: FrameType | None) -> None:
        # While the parent lives, it tells the running step itself, and this process has the exit handler to run.
        if os.getppid() != parent:
            stop_run(folder, os.getpid())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    die_with_parent(parent)
    lock = lock_graph(folder)
    assert lock is not None, "the parent holds the run, so nothing else starts its graph"
    # On one machine nothing starts a step again; the command is what goes on from where it ended.
    for component in finetune.pipeline_spec.components.values():
        for task in component.dag.tasks.values():
            task.ClearField("retry_policy")
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(path.parent / "outputs"),
        raise_on_error=True,
    )
    try:
        finetune(**arguments)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    finally:
        lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
