import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID
from training.events import EventWriter, Note, Span, read_events
from training.run_folder import RunFolder

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount a small disk or become another user"
)

HEADER = """
import os, signal, sys, time
from pathlib import Path
from components.step import ClosingStep, Step, StepFailed
from training.errors import UserError
from training.store import Store, write_atomically
store = sys.argv[1]
"""


class Process:
    """A step in a process of its own, as Kubeflow runs it."""

    def __init__(self, code, store, **options):
        self.store = store
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEADER + textwrap.dedent(code), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def wait_for(self, line):
        assert self._process.stdout.readline() == f"{line}\n", self.end()

    def terminate(self):
        self._process.terminate()

    def end(self):
        self.stdout, self.stderr = self._process.communicate(timeout=30)
        self.code = self._process.returncode
        return self

    def spans(self, run="run"):
        events = read_events(RunFolder(self.store, run).events)
        return [(event.phase, event.ok, event.detail) for event in events if isinstance(event, Span)]


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def step(store):
    def start(code, **options):
        return Process(code, store, **options)

    return start


# How a step ends


def test_a_step_that_succeeds_is_a_span_with_its_detail(step):
    process = step(
        """
        with Step("train", store, "run") as step:
            step.note("on the way")
            step.detail = "made something"
        print("outputs are written")
        """
    ).end()
    assert (process.code, process.stderr) == (0, "")
    assert process.stdout == "on the way\noutputs are written\n"
    assert process.spans() == [("start", True, ""), ("end", True, "made something")]
    span, note, end = read_events(process.store / "runs" / "run" / "events")
    assert isinstance(note, Note)
    assert {event.source for event in (span, note, end)} == {"train"}
    assert 0 <= end.seconds < 30


def test_a_user_error_is_its_message_alone(step):
    process = step(
        """
        with Step("train", store, "run") as step:
            step.detail = "not yet true"
            raise UserError("training.seed is wrong:\\nset it right")
        """
    ).end()
    assert process.code == EXIT_INVALID == 64
    assert process.stderr == "train: training.seed is wrong:\nset it right\n"
    assert process.spans()[-1] == ("end", False, "training.seed is wrong:\nset it right")


def test_any_other_exception_leaves_its_traceback_in_the_log_and_a_line_in_the_events(step):
    process = step(
        """
        def deep():
            return {}["key"]
        with Step("train", store, "run"):
            try:
                deep()
            except KeyError as error:
                raise RuntimeError("told") from error
        """
    ).end()
    assert process.code == EXIT_FAILED == 1
    assert process.stderr.count("Traceback") == 2, "the cause is part of it"
    assert "in deep" in process.stderr
    assert process.stderr.splitlines()[-1] == "train: RuntimeError: told"
    assert process.spans()[-1] == ("end", False, "RuntimeError: told")


def test_work_that_failed_elsewhere_is_told_without_a_traceback(step):
    process = step(
        """
        with Step("train", store, "run"):
            raise StepFailed("rank 3 ended\\nTheirError: here")
        """
    ).end()
    assert process.code == EXIT_FAILED
    assert process.stderr == "train: rank 3 ended\nTheirError: here\n"
    assert process.spans()[-1] == ("end", False, "rank 3 ended\nTheirError: here")


@pytest.mark.parametrize(
    "error", ["SystemExit(0)", "SystemExit(3)", "GeneratorExit()", "MemoryError()", "AssertionError()"]
)
def test_no_exception_ends_a_step_as_if_it_had_succeeded(step, error):
    process = step(
        f"""
        with Step("train", store, "run"):
            raise {error}
        """
    ).end()
    assert process.code == EXIT_FAILED
    assert process.spans()[-1][1] is False


def test_an_error_whose_text_is_not_utf_8_is_told(step):
    process = step(
        """
        with Step("train", store, "run"):
            open(os.fsdecode(b"/no/such/caf\\xe9"))
        """
    ).end()
    assert process.code == EXIT_FAILED
    assert "caf" in process.spans()[-1][2]
    assert "caf" in process.stderr.splitlines()[-1]


def test_an_error_text_full_of_control_characters_and_markup_stays_one_event(step):
    process = step(
        """
        with Step("train", store, "run"):
            raise UserError("[red]\\x1b[2J\\x00\\u2028\\r\\n\\U0001f600")
        """
    ).end()
    assert process.spans()[-1] == ("end", False, "[red]\x1b[2J\x00\u2028\r\n\U0001f600")


# SIGTERM


def test_sigterm_in_the_middle_runs_the_finally_blocks_and_exits_with_143(step):
    process = step(
        """
        with Step("train", store, "run"):
            try:
                print("working", flush=True)
                time.sleep(60)
            finally:
                print("put in order", flush=True)
        """
    )
    process.wait_for("working")
    process.terminate()
    process.end()
    assert process.code == EXIT_INTERRUPTED == 143
    assert process.stdout == "put in order\n"
    assert "Traceback" not in process.stderr
    assert "interrupted; a run of the same name goes on" in process.stderr
    assert process.spans()[-1][:2] == ("end", False)


def test_sigterm_passes_through_handlers_of_ordinary_exceptions(step):
    process = step(
        """
        with Step("train", store, "run"):
            try:
                print("working", flush=True)
                time.sleep(60)
            except Exception:
                pass
            print("went on")
        """
    )
    process.wait_for("working")
    process.terminate()
    process.end()
    assert (process.code, process.stdout) == (EXIT_INTERRUPTED, "")


def test_a_second_sigterm_does_not_cut_the_finally_blocks_short(step):
    process = step(
        """
        with Step("train", store, "run"):
            try:
                print("working", flush=True)
                time.sleep(60)
            finally:
                print("stopping", flush=True)
                time.sleep(0.5)
                print("stopped", flush=True)
        """
    )
    process.wait_for("working")
    process.terminate()
    process.wait_for("stopping")
    process.terminate()
    process.end()
    assert (process.code, process.stdout) == (EXIT_INTERRUPTED, "stopped\n")
    assert "Traceback" not in process.stderr


def test_an_interrupted_publish_leaves_nothing_in_the_store(step, store):
    process = step(
        """
        with Step("train", store, "run") as step, Store(store).publish("models", "key", {}) as staging:
            (staging / "weights").write_text("half")
            print("working", flush=True)
            time.sleep(60)
        """
    )
    process.wait_for("working")
    process.terminate()
    assert process.end().code == EXIT_INTERRUPTED
    assert list((store / ".staging").iterdir()) == []
    assert not (store / "models").exists()


def test_sigterm_after_the_work_is_done_does_not_change_what_it_came_to(step):
    process = step(
        """
        import components.step
        class SlowWriter(components.step.EventWriter):
            def write(self, event):
                if getattr(event, "phase", "") == "end":
                    os.kill(os.getpid(), signal.SIGTERM)
                super().write(event)
        components.step.EventWriter = SlowWriter
        with Step("train", store, "run") as step:
            step.detail = "done"
        """
    ).end()
    assert process.code == 0
    assert process.spans()[-1] == ("end", True, "done")


def test_a_step_gives_back_the_signal_handler_that_it_found(step):
    process = step(
        """
        signal.signal(signal.SIGTERM, lambda *args: print("mine", flush=True))
        with Step("train", store, "run"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        """
    ).end()
    assert (process.code, process.stdout) == (0, "mine\n")


def test_ctrl_c_is_an_interruption_too(step):
    process = step(
        """
        with Step("train", store, "run"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        """
    ).end()
    assert process.code == EXIT_INTERRUPTED
    assert "Traceback" not in process.stderr


# A pipeline on this machine: a process that runs the graph, a shell, the step

PIPELINE = """
import os, subprocess, sys
os.environ["SHARDLINE_DIE_WITH_PARENT"] = str(os.getpid())
# A second command keeps the shell from becoming the step.
subprocess.run(["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("victim", ["graph", "shell"])
def test_a_step_does_not_outlive_the_pipeline_that_it_belongs_to(store, victim):
    work = f"""{HEADER}
with Step("train", store, "run"):
    print(os.getpid(), os.getppid(), flush=True)
    time.sleep(60)
"""
    graph = subprocess.Popen([sys.executable, "-c", PIPELINE, work, str(store)], stdout=subprocess.PIPE, text=True)
    pid, shell = map(int, graph.stdout.readline().split())
    step = psutil.Process(pid)
    os.kill({"graph": graph.pid, "shell": shell}[victim], signal.SIGKILL)
    _, alive = psutil.wait_procs([step], timeout=20)
    assert not alive or step.status() == psutil.STATUS_ZOMBIE
    graph.communicate(timeout=20)
    *_, end = read_events(store / "runs" / "run" / "events")
    assert end.phase == "end" and "interrupted" in end.detail


# A run that was asked to stop


def ask_to_stop(store):
    folder = RunFolder(store, "run")
    folder.path.mkdir(parents=True)
    folder.stop_request.touch()


def test_a_step_of_a_run_that_was_asked_to_stop_does_not_begin(step, store):
    ask_to_stop(store)
    process = step(
        """
        with Step("train", store, "run"):
            print("began")
        """
    ).end()
    assert (process.code, process.stdout) == (EXIT_INTERRUPTED, "")
    assert "Traceback" not in process.stderr
    assert [span[:2] for span in process.spans()] == [("start", True), ("end", False)]


def test_a_closing_step_runs_even_then(step, store):
    ask_to_stop(store)
    process = step(
        """
        with ClosingStep("stop_training", store, "run") as step:
            step.detail = "cleaned"
        """
    ).end()
    assert process.code == 0
    assert process.spans()[-1] == ("end", True, "cleaned")


def test_a_closing_step_is_deaf_to_sigterm_from_its_first_moment_but_its_children_are_not(step):
    process = step(
        """
        import components.step, subprocess
        class Writer(components.step.EventWriter):
            def write(self, event):
                os.kill(os.getpid(), signal.SIGTERM)
                super().write(event)
        components.step.EventWriter = Writer
        with ClosingStep("stop_training", store, "run") as step:
            os.kill(os.getpid(), signal.SIGTERM)
            print("went on")
            child = subprocess.Popen(["sleep", "60"])
            child.terminate()
            print(child.wait())
        """
    ).end()
    assert (process.code, process.stdout) == (0, "went on\n-15\n")
    assert process.spans()[-1][1] is True


def test_a_closing_step_fails_like_any_other(step):
    process = step(
        """
        with ClosingStep("stop_training", store, "run"):
            raise UserError("told")
        """
    ).end()
    assert (process.code, process.stderr) == (EXIT_INVALID, "stop_training: told\n")


# Stores and names that will not do


@pytest.mark.parametrize("name", ["Bad Name", "../up", "-", "a" * 49])
def test_a_run_name_that_is_not_valid_is_one_message(step, store, name):
    process = step(
        f"""
        with Step("train", store, {name!r}):
            print("began")
        """
    ).end()
    assert (process.code, process.stdout) == (EXIT_INVALID, "")
    assert process.stderr.startswith("train: the run name ")
    assert process.stderr.count("\n") == 1
    assert not store.exists()


def test_a_run_without_a_name_is_named_after_the_job(step):
    process = step(
        """
        with Step("train", store, "", "Nightly run (7)") as step:
            print(step.run)
        """
    ).end()
    assert process.stdout == "nightly-run-7\n"
    assert process.spans("nightly-run-7") != []


def test_a_store_that_is_a_file_is_one_message(step, store):
    store.write_text("in the way")
    process = step(
        """
        with Step("train", store, "run"):
            print("began")
        """
    ).end()
    assert (process.code, process.stdout) == (EXIT_INVALID, "")
    assert process.stderr == f"train: the store {store} needs a folder where there is a file: move {store} away\n"


BECOME_NOBODY = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"


@needs_root
@pytest.mark.parametrize("place", ["store", "events", "file"])
def test_a_store_that_may_not_be_written_to_is_one_message(step, store, place):
    if place != "store":
        EventWriter(RunFolder(store, "run").events, "train").close()
    if place == "file":
        (store / "runs" / "run" / "events").chmod(0o777)
    for folder in store.parents[:-2]:
        folder.chmod(0o755)
    process = step(
        BECOME_NOBODY
        + textwrap.dedent(
            """
            with Step("train", store, "run"):
                print("began")
            """
        )
    ).end()
    assert (process.code, process.stdout) == (EXIT_INVALID, "")
    assert process.stderr.startswith("train: no permission to write ")
    assert f"make the store {store} writable" in process.stderr
    assert process.stderr.count("\n") == 1


FULL_DISK = """
disk = Path(store)
with (disk / "filler").open("wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
"""


@pytest.fixture
def small_disk(store):
    store.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(store)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield
    subprocess.run(["umount", str(store)], check=True)


@needs_root
@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize(
    "moment",
    [
        # Full before the span, at a note, and at a small file that is written outside of `Store.publish`.
        FULL_DISK + 'with Step("train", store, "run"):\n    pass\n',
        'with Step("train", store, "run") as step:\n'
        + textwrap.indent(FULL_DISK, "    ")
        + '    step.note("x" * 5000)\n',
        'with Step("train", store, "run") as step:\n'
        + textwrap.indent(FULL_DISK, "    ")
        + '    write_atomically(disk / "result.json", "x" * 5000)\n',
    ],
    ids=["at the start", "at a note", "at a small file"],
)
def test_a_full_disk_is_one_message(step, moment):
    process = step(moment).end()
    assert process.code == EXIT_INVALID
    assert process.stderr.startswith("train: the disk of the store")
    assert "is full" in process.stderr
    assert process.stderr.count("\n") == 1, process.stderr


def test_an_error_about_another_place_keeps_its_traceback(step):
    process = step(
        """
        with Step("train", store, "run"):
            raise PermissionError(13, "Permission denied", "/etc/shadow")
        """
    ).end()
    assert process.code == EXIT_FAILED
    assert "Traceback" in process.stderr
    assert "/etc/shadow" in process.stderr.splitlines()[-1]


def test_a_step_that_is_killed_leaves_a_span_without_an_end_and_can_run_again(step):
    process = step(
        """
        with Step("train", store, "run"):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    ).end()
    assert process.code == -signal.SIGKILL
    assert [span[0] for span in process.spans()] == ["start"]
    process = step('with Step("train", store, "run"):\n    pass\n').end()
    assert [span[0] for span in process.spans()] == ["start", "start", "end"]
