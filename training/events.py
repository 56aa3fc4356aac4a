"""The event stream: what a run says of itself, as JSON lines of one schema.

Ranks and steps append; progress bars, MLflow, reports and the goodput ledger read. Each writer has a file of its
own below `<run>/events/`, so no two processes ever write to one.
"""

import heapq
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from training.patience import may_pass

CHECKPOINT_WRITE = "checkpoint_write"
"""Name of the span of a checkpoint's writing, beside the training."""

INTERRUPTED = "interrupted;"
"""What the detail of a span begins with that was stopped."""

LOCAL = "local"
"""Its detail where the checkpoint is on the nodes' own disks."""


class _Event(BaseModel):
    # By default pydantic writes a loss of NaN as null, which no reader takes for a number.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    time: float = Field(default_factory=time.time)
    """Seconds since the epoch."""
    source: str = ""
    """Who writes: `rank-0`, or a step's name."""
    attempt: int = 0
    """The attempt it belongs to, counted from 1; 0 outside of attempts."""


class Span(_Event):
    """Something with a beginning and an end: a pipeline step, loading, a checkpoint."""

    kind: Literal["span"] = "span"
    name: str
    phase: Literal["start", "end"]
    ok: bool = True
    """At the end: whether it succeeded."""
    seconds: float | None = None
    """At the end: how long it took."""
    detail: str = ""
    """For people: what it made, or why it failed."""
    step: int | None = None
    """Of a checkpoint that was written: steps done in it."""


class TrainStep(_Event):
    """One optimizer step, over all ranks."""

    kind: Literal["train_step"] = "train_step"
    step: int
    """Counted from 1."""
    num_steps: int
    loss: float
    """Cross-entropy in nats per supervised token, over the global batch."""
    worst_rank_loss: float | None = None
    """The same of the rank where it is highest; a rank whose data or device is bad stands out."""
    grad_norm: float
    learning_rate: float
    num_tokens: int
    """Tokens in the global batch, padding excluded."""
    num_supervised: int
    """Tokens that the loss is taken over."""
    num_positions: int | None = None
    """Positions that were computed, padding included."""
    num_devices: int = 1
    """Ranks that shared the step."""
    seconds: float
    """Wall time since the end of the step before, checkpoints and evaluations included."""
    data_s: float = 0.0
    """Of it, waiting for samples; of the slowest rank, as the following."""
    compute_s: float = 0.0
    """Of it, forward and backward passes with their collectives."""
    optimizer_s: float = 0.0
    """Of it, clipping and the optimizer."""
    checkpoint_s: float = 0.0
    """Of it, held up by checkpoints."""
    evaluation_s: float = 0.0
    """Of it, taking the held-out loss."""
    flops: float | None = None
    """Floating-point operations that the model needs for this batch, over all ranks; see `training.flops`."""
    peak_tflops: float | None = None
    """Published dense peak of one device at the run's precision; None where it is not known."""
    memory_gib: float
    """Highest memory of any rank: of the accelerator's allocator, or resident on a CPU."""
    skipped: bool = False
    """Whether its samples were left out (`training.skipped`); then the loss may not be finite."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of all ranks together."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def supervised_tokens_per_s(self) -> float:
        """Throughput of all ranks together, in tokens that the loss is taken over."""
        return self.num_supervised / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_s_per_device(self) -> float:
        """Throughput of one rank."""
        return self.tokens_per_s / self.num_devices

    @property
    def split(self) -> dict[str, float]:
        """Where the step's seconds went, by phase; empty where that was not measured."""
        phases = {
            "data": self.data_s,
            "compute": self.compute_s,
            "optimizer": self.optimizer_s,
            "checkpoint": self.checkpoint_s,
            "evaluation": self.evaluation_s,
        }
        taken = sum(phases.values())
        return {**phases, "other": max(0.0, self.seconds - taken)} if taken else {}

    @property
    def fill(self) -> float | None:
        """Share of the computed positions that held a token."""
        return self.num_tokens / self.num_positions if self.num_positions else None

    @property
    def tflops_per_device(self) -> float | None:
        """Model TFLOP/s of one rank, in the time that was not spent on checkpoints and evaluations."""
        seconds = self.seconds - self.checkpoint_s - self.evaluation_s
        return self.flops / seconds / self.num_devices / 1e12 if self.flops and seconds > 0 else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: `tflops_per_device` as a share of the peak; None where that is not known."""
        achieved = self.tflops_per_device
        return achieved / self.peak_tflops if achieved and self.peak_tflops else None

    @property
    def seconds_left(self) -> float:
        """Until the last step, at this step's pace."""
        return (self.num_steps - self.step) * self.seconds


class Evaluation(_Event):
    """Loss of one model on the held-out rows."""

    kind: Literal["evaluation"] = "evaluation"
    name: Literal["base", "tuned", "champion", "step"]
    """`step`: of the model in training, after `step` steps."""
    step: int | None = None
    loss: float
    """Nats per supervised token."""
    num_supervised: int


class System(_Event):
    """What a node's machine did since the sample before: its source is the node."""

    kind: Literal["system"] = "system"
    values: dict[str, float]
    """By the names that MLflow gives its system metrics, such as cpu_utilization_percentage."""


class RanksEnded(_Event):
    """The ranks of one node have ended, and not because their work was done; its source is the node."""

    kind: Literal["ranks_ended"] = "ranks_ended"
    node: int
    """The node's number."""
    host: str
    """Its machine."""
    what: str | None = None
    """Class of the incident, where the node knows it better than the ranks' words tell: `hang`, `oom`,
    `node_suspect`, `preempted`."""
    rank: int | None = None
    """The first rank that failed, of those of this node."""
    exit_code: int | None = None
    """Of that rank, as Popen gives it; None where none ended by itself."""
    beat: int | None = None
    """In a hang, the number of that rank's last beat: of several nodes, the least is behind. -1: its process was
    stopped, which makes it the cause for certain."""
    evidence: str = ""
    """For people."""


class Alert(_Event):
    """Something that is not as it should be, while training goes on."""

    kind: Literal["alert"] = "alert"
    what: Literal["straggler", "slow_link", "xid", "health", "storage", "preemption"]
    rank: int | None = None
    """The rank, for a straggler."""
    host: str = ""
    """The machine that is to blame; of a link, the far end."""
    node: int | None = None
    """Its number."""
    is_fatal: bool = False
    """Whether the machine is not to be used any further."""
    text: str
    """For people: what was measured, and against what."""


class Incident(_Event):
    """An attempt that ended without success."""

    kind: Literal["incident"] = "incident"
    what: str
    """Class: `invalid`, `interrupted`, `signal`, `exception`, `oom`, `hang`, `nonfinite`, `preempted`,
    `node_lost`, `node_suspect`, `network`, `storage`; in a cluster also `evicted`; and the limits
    `queue_timeout`, `start_timeout`, `run_timeout`, `stall_timeout`."""
    rank: int | None = None
    """The first rank that failed."""
    exit_code: int | None = None
    node: str = ""
    """The first pod that failed, in a cluster."""
    host: str = ""
    """The machine that it ran on."""
    step: int | None = None
    """The last step that was done when it ended."""
    fingerprint: str = ""
    """The same for incidents of the same cause."""
    evidence: str = ""
    """The first failing rank's last words, and what the cluster said."""


Action = Literal["restart_in_place", "restart_elsewhere", "shrink", "stop"]


class Decided(_Event):
    """What the supervisor does about an incident."""

    kind: Literal["decided"] = "decided"
    action: Action
    reason: str
    """In one line."""
    excluded: tuple[str, ...] = ()
    """Machines that are not used for a while."""
    num_nodes: int | None = None
    """Of the next attempt."""


class Note(_Event):
    """A line for people."""

    kind: Literal["note"] = "note"
    level: Literal["info", "warning", "error"] = "info"
    text: str


_Any = Span | TrainStep | Evaluation | System | RanksEnded | Alert | Incident | Decided | Note

Event = Annotated[_Any, Field(discriminator="kind")]

_adapter: TypeAdapter[_Any] = TypeAdapter(Event)


class EventWriter:
    """Appends events to the writer's own file; every line is written whole.

    Args:
        folder: `<run>/events`.
        source: The writer's name, which is also the file's.
        attempt: Stamped on every event.
    """

    def __init__(self, folder: Path, source: str, attempt: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.source = source
        self.attempt = attempt
        path = folder / f"{source}.jsonl"
        self._lock = threading.Lock()
        # Without a buffer, which would try again what a full disk refused, behind the back of who gives it again.
        self._file = path.open("ab", buffering=0)
        self._is_half_way = _ends_half_way(path)

    def write(self, event: Any) -> None:
        """Append one event."""
        stamped = event.model_copy(update={"source": self.source, "attempt": event.attempt or self.attempt})
        line = f"{stamped.model_dump_json()}\n".encode()
        # A checkpoint that is written in the background reports from a thread of its own.
        with self._lock:
            rest = b"\n" + line if self._is_half_way else line
            self._is_half_way = False
            while rest:
                rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(folder: Path) -> list[Any]:
    """All events of a run, oldest first."""
    return list(EventReader(folder).poll())


class EventReader:
    """Reads a run's events as they come.

    Args:
        folder: `<run>/events`; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: dict[Path, int] = {}

    def poll(self) -> Iterator[Any]:
        """Events since the last call, ordered by time; those of one writer as it wrote them."""
        # One at a time, as a run of months has more of them than memory should hold.
        timed = (self._timed(path) for path in sorted(self.folder.glob("*.jsonl")))
        yield from (event for _, event in heapq.merge(*timed, key=lambda pair: pair[0]))

    def _timed(self, path: Path) -> Iterator[tuple[float, Any]]:
        """A writer's events, with times that do not go back when its clock does."""
        latest = 0.0
        for event in self._read(path):
            latest = max(latest, event.time)
            yield latest, event

    def _read(self, path: Path) -> Iterator[Any]:
        try:
            yield from self._read_on(path)
        except OSError as error:
            # What a network disk does not give now comes with a later poll.
            if not may_pass(error) and not isinstance(error, FileNotFoundError):
                raise

    def _read_on(self, path: Path) -> Iterator[Any]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    break  # its writer is in the middle of it, or died there: wait for the rest
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                try:
                    yield _adapter.validate_json(line)
                except ValueError:
                    continue  # a killed writer's half line, or a kind that a later version writes


def _ends_half_way(path: Path) -> bool:
    """Whether the last line was not finished, as a killed writer leaves it."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
