"""A run's metrics for Prometheus, read from its event stream when they are asked for."""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from training.errors import UserError
from training.events import (
    CHECKPOINT_WRITE,
    LOCAL,
    Alert,
    Evaluation,
    EventReader,
    EventWriter,
    Incident,
    Note,
    Span,
    TrainStep,
)
from training.heartbeat import Watch
from training.ledger import MEANINGS, Account
from training.run_folder import RunFolder

_GIB = 2**30

# Of the newest step: attribute of the event → what it means. What is None is left out.
_OF_STEP = {
    "step": "Optimizer steps so far.",
    "num_steps": "Optimizer steps planned.",
    "loss": "Cross-entropy in nats per supervised token, over the global batch.",
    "worst_rank_loss": "The loss of the rank where it is highest.",
    "grad_norm": "Global norm of the gradients before clipping.",
    "learning_rate": "Learning rate.",
    "tokens_per_second": "Tokens per second over all ranks.",
    "tokens_per_second_per_device": "Tokens per second of one rank.",
    "supervised_tokens_per_second": "Tokens per second that the loss is taken over, over all ranks.",
    "fill_ratio": "Share of the computed positions that held a token.",
    "tflops_per_device": "Model TFLOP/s of one rank, outside of checkpoints and evaluations.",
    "mfu": "Model FLOPs utilisation, a share of the device's published peak.",
    "memory_bytes": "Highest memory of any rank.",
    "seconds_left": "Seconds to the last step at this step's pace.",
}

_CHECKPOINT_PHASES = {"checkpoint": "held_up", CHECKPOINT_WRITE: "written"}
"""By the name of the span."""


class RunCollector(Collector):
    """What Prometheus gets of a run.

    Args:
        folder: The run, whose events are read.
        attempt: The one that goes on, whose nodes are watched.
    """

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._run = folder.run
        self._heartbeats = folder.job_path / "heartbeats"
        self._nodes = folder.attempt(attempt) / "nodes"
        self._watches: dict[str, Watch] = {}
        self._reader = EventReader(folder.events)
        self._account = Account(folder)
        # The server answers each scrape in a thread of its own.
        self._lock = threading.Lock()
        self._step: TrainStep | None = None
        self._losses: dict[str, float] = {}
        self._attempts = 0
        self._incidents: Counter[str] = Counter()
        self._checkpoints = 0
        self._checkpoint_s: dict[str, float] = {}
        self._last_checkpoint: float | None = None
        self._alerts: Counter[str] = Counter()

    def collect(self) -> Iterator[Metric]:
        """Read what is new, and tell where the run stands."""
        with self._lock:
            now = time.time()
            self._account.take(self._taken(), now)
            metrics = [*self._of_step(), *self._of_run(), *self._of_life(now), *self._of_nodes()]
        yield from metrics

    def _taken(self) -> Iterator[Any]:
        """What is new, taken in here."""
        for event in self._reader.poll():
            self._take(event)
            yield event

    def _take(self, event: Any) -> None:
        self._attempts = max(self._attempts, event.attempt)
        if isinstance(event, TrainStep):
            self._step = event
        elif isinstance(event, Evaluation):
            self._losses[event.name] = event.loss
        elif isinstance(event, Incident):
            self._incidents[event.what] += 1
        elif isinstance(event, Alert):
            self._alerts[event.what] += 1
        elif isinstance(event, Span):
            self._take_span(event)

    def _take_span(self, span: Span) -> None:
        # All ranks save together, and each writes of itself.
        counts = span.source == "rank-0" and span.detail != LOCAL  # the same one comes to the store
        phase = _CHECKPOINT_PHASES.get(span.name) if counts else None
        if phase is not None and span.phase == "end" and span.ok:
            if phase == "written":
                self._checkpoints += 1
                self._last_checkpoint = span.time
            self._checkpoint_s[phase] = span.seconds or 0.0

    def _of_step(self) -> Iterator[Metric]:
        step = self._step
        if step is None:
            return
        renamed = {
            "tokens_per_second": step.tokens_per_s,
            "tokens_per_second_per_device": step.tokens_per_s_per_device,
            "supervised_tokens_per_second": step.supervised_tokens_per_s,
            "fill_ratio": step.fill,
            "memory_bytes": step.memory_gib * _GIB,
        }
        for name, meaning in _OF_STEP.items():
            value = renamed[name] if name in renamed else getattr(step, name)
            if value is not None:
                yield self._gauge(f"shardline_train_{name}", meaning, value)
        split = self._gauges("shardline_train_step_seconds", "Where the newest step's time went.", "phase")
        for phase, seconds in step.split.items():
            split.add_metric([self._run, phase], seconds)
        yield split

    def _of_run(self) -> Iterator[Metric]:
        losses = self._gauges(
            "shardline_evaluation_loss",
            "Held-out loss in nats per token: of the base model, the tuned model, and in training (step).",
            "model",
        )
        for name, loss in self._losses.items():
            losses.add_metric([self._run, name], loss)
        yield losses
        incidents = CounterMetricFamily(
            "shardline_incidents", "Attempts that ended without success, by class.", labels=["run", "class"]
        )
        for what, count in self._incidents.items():
            incidents.add_metric([self._run, what], count)
        yield incidents
        yield self._counter("shardline_attempts", "Attempts so far, the running one included.", self._attempts)
        yield self._counter("shardline_checkpoints", "Checkpoints saved.", self._checkpoints)
        checkpoint = self._gauges(
            "shardline_checkpoint_seconds",
            "Of the newest checkpoint: how long training waited for it (held_up), and writing it took (written).",
            "phase",
        )
        for phase, seconds in self._checkpoint_s.items():
            checkpoint.add_metric([self._run, phase], seconds)
        yield checkpoint

    def _of_life(self, now: float) -> Iterator[Metric]:
        alerts = CounterMetricFamily(
            "shardline_alerts", "What was not as it should be, while training went on.", labels=["run", "what"]
        )
        for what, count in self._alerts.items():
            alerts.add_metric([self._run, what], count)
        yield alerts
        if self._last_checkpoint is not None:
            meaning = "When the newest checkpoint was written."
            yield self._gauge("shardline_last_checkpoint_timestamp_seconds", meaning, self._last_checkpoint)
        totals = self._account.totals(now)
        if totals is None:
            return
        # No counter: a step counts until it is lost, and the queue's time is told of after its end.
        seconds = self._gauges(
            "shardline_run_seconds", "What the run's time went into, over all attempts.", "bucket"
        )
        spent = totals.seconds
        for bucket in MEANINGS:
            seconds.add_metric([self._run, bucket], spent.get(bucket, 0.0))
        yield seconds
        meaning = "Time of the steps that count, a share of the wall time since the first attempt's start."
        yield self._gauge("shardline_goodput_ratio", meaning, totals.goodput)

    def _of_nodes(self) -> Iterator[Metric]:
        ages = self._gauges(
            "shardline_heartbeat_age_seconds",
            "How long a node has not been heard of, as this one sees it.",
            "node",
        )
        for node in sorted(path.stem for path in self._nodes.glob("*.json")):
            # By what changes, not by its time: clocks of nodes differ.
            watch = self._watches.setdefault(node, Watch(self._heartbeats / f"node-{node}"))
            ages.add_metric([self._run, node], watch.silent_s())
        yield ages

    def _gauge(self, name: str, meaning: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, meaning, labels=["run"])
        gauge.add_metric([self._run], value)
        return gauge

    def _gauges(self, name: str, meaning: str, label: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, meaning, labels=["run", label])

    def _counter(self, name: str, meaning: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(name, meaning, labels=["run"])
        counter.add_metric([self._run], value)
        return counter


@contextlib.contextmanager
def serve_metrics(folder: RunFolder, attempt: int) -> Iterator[None]:
    """Serve the run's metrics while the block runs, if its config names a port; whatever happens, the block runs.

    Args:
        folder: The run.
        attempt: The attempt that a warning belongs to.
    """
    try:
        port = folder.config().cluster.metrics_port
    except UserError:
        port = None  # the ranks report it, as what ends the attempt
    server = None
    if port is not None:
        # Of its own, because the library's default one adds figures of this process, which is not the training.
        registry = CollectorRegistry()
        registry.register(RunCollector(folder, attempt))
        try:
            server, _ = start_http_server(port, registry=registry)
        except OSError as error:
            _warn(folder, attempt, f"no metrics are served: port {port} cannot be used ({error.strerror})")
    try:
        yield
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _warn(folder: RunFolder, attempt: int, text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        events = EventWriter(folder.events, "exporter", attempt)
        events.write(Note(level="warning", text=text))
        events.close()
