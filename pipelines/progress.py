"""What a person sees while a run goes on, read from its event stream."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from training.events import INTERRUPTED, Evaluation, Incident, Note, Span, TrainStep

STEPS = {
    "preflight": "check the configuration, model and data",
    "check_nodes": "check the nodes, where that is asked for",
    "download_model": "bring the model into the store",
    "tokenize_dataset": "tokenize and pack the data",
    "train": "fine-tune",
    "evaluate": "compare base, champion and tuned model",
    "register_model": "register in MLflow",
    "stop_training": "clean up",
}
"""The graph's steps in the order in which a machine runs them, and what each does."""


_NOTE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}

_INDENT = " " * 11


class ProgressView:
    """Shows a run: on a terminal with live bars, elsewhere line by line.

    Args:
        console: Where to.
        quiet: Show only what went wrong.

    Attributes:
        told_failure: Whether a step's error has been shown.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.told_failure = False
        self._quiet = quiet
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._running: str | None = None
        self._began = 0.0
        self._training: TrainStep | None = None
        self._heldout: Evaluation | None = None
        self._bars = Progress(
            TextColumn(_INDENT),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
        )
        self._bar = self._bars.add_task("", total=None, loss="")

    def __enter__(self) -> "ProgressView":
        """Begin the live display."""
        if self._live is not None and not self._quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the live display."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str | Text) -> None:
        """Print a line above what is live; what others wrote comes as `Text`, so that it is no markup."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def show(self, event: Any) -> None:
        """Take one event in."""
        if isinstance(event, Span) and event.name in STEPS and event.source == event.name:
            self._on_step_span(event)
        elif self._quiet:
            return
        elif isinstance(event, TrainStep):
            self._on_train_step(event)
        elif isinstance(event, Evaluation) and event.name == "step":
            self._on_heldout_loss(event)
        elif isinstance(event, Note):
            self.say(Text(f"             {event.text}", style=_NOTE_STYLES[event.level]))
        elif isinstance(event, Incident):
            self.say(Text(f"             attempt {event.attempt}: {event.what}", style="yellow"))
        self._refresh()

    def _on_step_span(self, event: Span) -> None:
        if event.phase == "start":
            self._running, self._began, self._training, self._heldout = event.name, time.monotonic(), None, None
            if not self._quiet and self._live is None:
                self.say(f"▸ {event.name}: {STEPS[event.name]}")
        else:
            self._running = None
            colour = "green" if event.ok else "yellow" if event.detail.startswith(INTERRUPTED) else "red"
            mark = {"green": "✓", "yellow": "■", "red": "✗"}[colour], colour
            took = f"{event.seconds or 0:.1f} s"
            line = Text.assemble(mark, " ", (f"{event.name:<17}", "bold"), f" {took:>8}")
            if event.ok and not self._quiet:
                self.say(line.append(f"   {event.detail}"))
            elif not event.ok:
                self.told_failure = True
                self.say(line)
                self.say(Text(f"  {event.detail}", style=colour))

    def _on_train_step(self, event: TrainStep) -> None:
        self._training = event
        self._bars.update(self._bar, total=event.num_steps, completed=event.step, loss=_loss(event))
        if self._live is None:
            self.say("  ".join([f"    step {event.step}/{event.num_steps}", _loss(event), *_facts(event)]))

    def _on_heldout_loss(self, event: Evaluation) -> None:
        self._heldout = event
        if self._live is None:
            self.say(f"    {_heldout_loss(event)}")

    def _refresh(self) -> None:
        if self._live is None or self._quiet:
            return
        if self._running is None:
            self._live.update(Text(""))
            return
        row = Table.grid(padding=(0, 1))
        row.add_row(
            Spinner("dots"), Text(f"{self._running:<17}", style="bold"), Text(STEPS[self._running], style="dim")
        )
        if self._training is None:
            self._live.update(row)
            return
        lines = ["  ".join(_facts(self._training))]
        if self._heldout is not None:
            lines.append(_heldout_loss(self._heldout))
        facts = Text("\n".join(f"{_INDENT} {line}" for line in lines), style="dim")
        self._live.update(Group(row, self._bars, facts))


def _loss(event: TrainStep) -> str:
    loss = f"loss {event.loss:.3f}"
    worst = None if event.worst_rank_loss is None else f"{event.worst_rank_loss:.3f}"
    return loss if worst in (None, f"{event.loss:.3f}") else f"{loss} (worst rank {worst})"


def _facts(event: TrainStep) -> list[str]:
    facts = [f"{event.tokens_per_s:,.0f} tokens/s"]
    if event.fill is not None:
        facts.append(f"{100 * event.fill:.0f} % filled")
    if event.mfu is not None:
        facts.append(f"MFU {100 * event.mfu:.0f} %")
    return [*facts, f"{event.memory_gib:.1f} GiB a rank", f"{event.seconds_left:.0f} s left"]


def _heldout_loss(event: Evaluation) -> str:
    return f"held-out loss {event.loss:.3f} after step {event.step}"
