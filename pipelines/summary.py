"""The last lines of a run on this machine: what came of it, and where it is."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from training.errors import EXIT_INTERRUPTED, UserError
from training.history import History, read_history
from training.ledger import Ledger, goodput_line
from training.run_folder import RunFolder
from training.store import MANIFEST


def print_summary(console: Console, store: Path, run: str, code: int) -> None:
    """Say how the run ended and what to do next.

    Args:
        console: Where to.
        store: Root of the store.
        run: The run's name.
        code: Exit code of the graph.
    """
    folder = RunFolder(store, run)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    if code == EXIT_INTERRUPTED:
        say("Stopped. The same command goes on from here.")
        return
    if code != 0:
        _print_goodput(folder, say)
        log = max((folder.path / "pipeline").glob("*/pipeline.log"), default=None)
        say(f"The run did not finish. What is done is kept; the whole output is in {escape(str(log))}")
        return
    base, tuned = (_read(folder.evaluation / f"{name}.json") for name in ("base", "tuned"))
    gate = _read(folder.evaluation / "gate.json")
    registered = _read(folder.path / "registration.json")
    history = read_history(folder.events)
    say("")
    if history.steps:
        say(f"Training    {_training(history)}")
    _print_goodput(folder, say)
    if history.heldout:
        say(f"Held-out    {_heldout(history)}")
    if base and tuned:
        say(f"[bold]Held-out perplexity {base['perplexity']:.1f} → {tuned['perplexity']:.1f}[/bold]")
        _print_example(console, base, tuned)
    if gate:
        say(f"Gate        {'passed' if gate['passed'] else 'not passed'}: {escape(' '.join(gate['reasons']))}")
    if (statistics := _statistics(folder)) is not None:
        say(f"Data        {escape(str(statistics))}")
    say(f"Report      {escape(str(folder.evaluation / 'report.html'))}")
    if folder.timeline.is_file():
        say(f"Timeline    {escape(str(folder.timeline))}")
    if (folder.model / MANIFEST).is_file():
        say(f"Model       {escape(str(folder.model))}")
    if registered:
        say(f"Registered  {escape(str(registered['name']))} version {registered['version']}")
        say(f"Browse      {escape(_browse(registered['tracking_uri']))}")


def _print_goodput(folder: RunFolder, say: Callable[[str], None]) -> None:
    """What the training's time went into, if there was one."""
    if (totals := Ledger.of(folder).totals) is not None:
        say(f"Time        {goodput_line(totals)}")


def _statistics(folder: RunFolder) -> Path | None:
    """The page on the run's data, if there is one."""
    try:
        page = folder.inputs().dataset / "statistics.html"
    except UserError:
        return None
    return page if page.is_file() else None


def _training(history: History) -> str:
    """How the training went: its last loss, and its speed as far as it is known."""
    last = history.steps[-1]
    loss = f"loss {last.loss:.3f} at step {last.step}"
    worst = last.worst_rank_loss
    if worst is not None and f"{worst:.3f}" != f"{last.loss:.3f}":
        loss += f" (worst rank {worst:.3f})"
    parts = [loss, f"{history.tokens_per_s:,.0f} tokens/s"]
    if history.fill is not None:
        parts.append(f"{100 * history.fill:.0f} % filled")
    if history.mfu is not None:
        parts.append(f"MFU {100 * history.mfu:.0f} %")
    return ", ".join([*parts, f"{history.peak_memory_gib:.1f} GiB a rank"])


def _heldout(history: History) -> str:
    """How the held-out loss went while training."""
    losses = {step: evaluation.loss for step, evaluation in history.heldout.items()}
    first, last, best = min(losses), max(losses), min(losses, key=lambda step: losses[step])
    text = f"loss {losses[first]:.3f} at step {first}"
    if last != first:
        text += f" → {losses[last]:.3f} at step {last}"
    # Where it rose again, the training went on for too long.
    return text if best == last else f"{text}, lowest {losses[best]:.3f} at step {best}"


def _browse(tracking_uri: str) -> str:
    """Where to look at MLflow: the server itself, or a command that serves the database."""
    if tracking_uri.startswith(("http://", "https://")):
        return tracking_uri
    mlflow = Path(sys.executable).with_name("mlflow")
    return f"{shlex.quote(str(mlflow))} ui --backend-store-uri {shlex.quote(tracking_uri)}"


def _print_example(console: Console, base: dict[str, Any], tuned: dict[str, Any]) -> None:
    pairs = list(zip(base["generations"], tuned["generations"], strict=False))
    if not pairs:
        return
    before, after = pairs[0]
    for label, text, style in (
        ("Question", before["question"], "bold"),
        ("Before", before["answer"], "dim"),
        ("After", after["answer"], "green"),
    ):
        console.print(
            f"{label:<11} [{style}]{escape(' '.join(text.split()))}[/{style}]", highlight=False, soft_wrap=True
        )
    console.print()


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content
