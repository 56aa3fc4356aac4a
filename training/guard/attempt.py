"""One attempt on this node: its checks, its ranks, and how they ended."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, parse_args

from training.background_events import BackgroundEventWriter
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NODE_SUSPECT
from training.events import RanksEnded, Span
from training.guard.agent import RankAgent
from training.guard.beat import FOLDER_VARIABLE, beats_folder
from training.guard.beside import Beside
from training.guard.fitness import unfit
from training.guard.guard import Guard
from training.guard.memory import oom_kills
from training.guard.place import Place, host_name, own_address, write_place
from training.guard.stacks import flight_recorder_env
from training.guard.warm import PARENT_GONE
from training.run_folder import RunFolder
from training.store import write_atomically

_SAVE_GRACE_S = 300
"""How long ranks may take to save after SIGTERM before they are killed. A pod's grace period, where shorter,
ends it sooner."""

_LAST_EVENTS_S = 30.0
"""How long the end of an attempt waits for a disk to take the node's last events."""


class NodeAttempt:
    """Runs the ranks of one attempt on this node.

    Args:
        run: The run, seen from the job.
        number: Of the attempt.
        node: This node's number.

    Attributes:
        is_told_to_stop: Whether SIGTERM came once the ranks had ended.
    """

    def __init__(self, run: RunFolder, number: int, node: int) -> None:
        self.run = run
        self.number = number
        self.node = node
        self.folder = run.attempt(number)
        self.config = run.config()
        self.host = host_name()
        self._pids: dict[int, int] = {}
        self._guard: Guard | None = None
        self.is_told_to_stop = False

    def run_ranks(self) -> int:
        """Run them to their end.

        Returns:
            The exit code of the node; what made it one that is not 0 is in the event stream.
        """
        _forget(self.folder / "errors", f"node-{self.node}.json")
        launch = self._launch_config()
        kills = oom_kills()
        source = f"{self.run.node_prefix}{self.node}"
        with (
            beats_folder() as beats,
            _events(self.run.events, source, self.number) as events,
            Beside(self.run, self.number, self.node, events, lambda: self._pids) as beside,
        ):
            try:
                self._check(events)
                failure = self._meet_and_run(launch, beats, beside.port, events)
            except _Unfit as unfit:
                events.write(self._ended("node_suspect", evidence=str(unfit), exit_code=EXIT_NODE_SUSPECT))
                return EXIT_NODE_SUSPECT
            except SignalException:
                events.write(self._ended("preempted", evidence=beside.notice, exit_code=EXIT_INTERRUPTED))
                return EXIT_INTERRUPTED
            except (RendezvousError, DistError) as error:
                words = f"this node could not meet the others: {type(error).__name__}: {error}"
                print(words, file=sys.stderr, flush=True)
                events.write(self._ended("network", evidence=words, exit_code=EXIT_FAILED))
                return EXIT_FAILED
            if failure is None:
                return 0
            if self._guard is not None and self._guard.hang is not None:
                beside.look_for_a_cut()
            events.write(self._judge(*failure, notice=beside.notice, has_oom_kill=oom_kills() > kills))
            return _exit_code(failure[1])

    def _launch_config(self) -> LaunchConfig:
        """What PET_* variables say, as torchrun reads them."""
        # The second has a level of its own, at which it would explain OMP_NUM_THREADS on every node.
        for name in ("torch.distributed", "torch.distributed.run"):
            logging.getLogger(name).setLevel(logging.ERROR)
        # Or torchrun leaves an empty folder in the temporary one.
        arguments = [f"--log-dir={self.folder / 'logs'}", "-m", "training.worker", str(self.run.job_path)]
        config, _, _ = config_from_args(parse_args(arguments))
        return config

    def _check(self, events: BackgroundEventWriter) -> None:
        if not self.config.resilience.health_checks:
            return
        started = time.monotonic()
        events.write(Span(name="checks", phase="start"))
        why = unfit(self.run, self.number, self.node, events)
        events.write(Span(name="checks", phase="end", ok=not why, seconds=time.monotonic() - started, detail=why))
        if why:
            raise _Unfit(why)

    def _meet_and_run(
        self, launch: LaunchConfig, beats: Path, port: int, events: BackgroundEventWriter
    ) -> tuple[int, int] | None:
        """Meet the other nodes and run the ranks; the first that failed and its exit code, None if none did."""
        endpoint = launch.rdzv_endpoint

        def before_start(envs: dict[int, dict[str, str]]) -> None:
            events.write(Span(name="rendezvous", phase="end", seconds=time.monotonic() - met))
            _stop_ranks_once()
            for rank in envs:
                _forget(self.folder / "errors", f"rank-{rank}.json")
            address = launch.local_addr or own_address(endpoint)
            place = Place(self.node, self.host, address, port, os.getpid(), tuple(envs))
            write_place(self.folder, place)
            recorder = flight_recorder_env(beats, self.folder / "stacks")
            for env in envs.values():
                env |= {FOLDER_VARIABLE: str(beats), "SHARDLINE_ATTEMPT": str(self.number), **recorder}

        def started(pids: dict[int, int]) -> None:
            self._pids = pids
            limits = self.config.resilience
            stacks = self.folder / "stacks"
            self._guard = Guard(pids, beats, stacks, step_s=limits.hang_timeout_s, other_s=limits.stall_timeout_s)
            self._guard.start()

        # Every attempt meets anew: what the store of the rendezvous knows of the one before is of no use.
        parameters = RendezvousParameters(
            backend=launch.rdzv_backend,
            endpoint=endpoint,
            run_id=f"{launch.run_id}-{self.number}",
            min_nodes=launch.min_nodes,
            max_nodes=launch.max_nodes,
            local_addr=launch.local_addr,
            **launch.rdzv_configs,
        )
        handler = rendezvous.get_rendezvous_handler(parameters)
        spec = WorkerSpec(
            role="rank",
            local_world_size=launch.nproc_per_node,
            rdzv_handler=handler,
            entrypoint="training.worker",
            max_restarts=0,
            monitor_interval=0.1,
            local_addr=launch.local_addr,
        )
        agent = RankAgent(spec, self.run.job_path, self.folder / "logs", _SAVE_GRACE_S, before_start, started)
        met = time.monotonic()
        events.write(Span(name="rendezvous", phase="start"))
        try:
            result = agent.run()
            self._remember_stops()
        finally:
            if self._guard is not None:
                self._guard.stop()
        handler.shutdown()
        if result is None:
            raise RendezvousError("the others had met without it, and have left")
        if not result.is_failed():
            return None
        first, code = _first_failure({rank: f.exitcode for rank, f in result.failures.items()})
        record = {"time": time.time(), "rank": first, "exit_code": code}
        with suppress(OSError):  # a full disk; the event tells it too
            write_atomically(self.folder / "errors" / f"node-{self.node}.json", json.dumps(record))
        return first, code

    def _remember_stops(self) -> None:
        """A stop must not cut short what is still to be told of the ranks' end."""

        def remember(signum: int, frame: FrameType | None) -> None:
            self.is_told_to_stop = True

        signal.signal(signal.SIGTERM, remember)

    def _judge(self, rank: int, code: int, *, notice: str, has_oom_kill: bool) -> RanksEnded:
        hang = self._guard.hang if self._guard else None
        if hang is not None:
            ended = self._ended("hang", hang.rank, code, hang.sentence)
            return ended.model_copy(update={"beat": -1 if hang.is_stopped else hang.beat})
        if has_oom_kill and code == -signal.SIGKILL:
            return self._ended(
                "oom", rank, code, f"the kernel killed rank {rank}: the memory of its group is used up"
            )
        if code == PARENT_GONE:
            return self._ended("signal", rank, code, "the process that ranks are forked from is gone")
        if code == EXIT_INTERRUPTED and notice:
            return self._ended("preempted", rank, code, notice)
        return self._ended(None, rank, code)

    def _ended(
        self, what: str | None, rank: int | None = None, exit_code: int | None = None, evidence: str = ""
    ) -> RanksEnded:
        return RanksEnded(
            node=self.node, host=self.host, what=what, rank=rank, exit_code=exit_code, evidence=evidence
        )


@contextmanager
def _events(folder: Path, source: str, attempt: int) -> Iterator[BackgroundEventWriter]:
    """The node's events: no disk holds up what has to be done about ranks, or ends it."""
    events = BackgroundEventWriter(folder, source, attempt)
    try:
        yield events
    finally:
        events.close(_LAST_EVENTS_S)


class _Unfit(Exception):
    """This machine did not pass its checks."""


def _first_failure(codes: dict[int, int]) -> tuple[int, int]:
    """The rank that failed first: rather one that was killed than one that was left without its peer."""

    def order(rank: int) -> tuple[bool, bool, int]:
        code = codes[rank]
        return (code in (-signal.SIGTERM, EXIT_INTERRUPTED), code > 0, rank)

    first = min(codes, key=order)
    return first, codes[first]


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code or EXIT_FAILED


def _stop_ranks_once() -> None:
    """From here on, pass the first SIGTERM on to the ranks, and ignore those after it.

    The death of a launcher comes as several: Linux signals once more with each of its threads.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, lambda *_: None)
        raise SignalException("told to stop", sigval=signal.Signals(signum))

    signal.signal(signal.SIGTERM, stop)


def _forget(folder: Path, name: str) -> None:
    """Remove what an earlier start of this attempt says of its end: a queue may have suspended and resumed it."""
    with suppress(OSError):
        (folder / name).unlink()
