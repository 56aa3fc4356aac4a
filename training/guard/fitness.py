"""Whether this machine is fit for its ranks: looked at before they meet, and while they run."""

from training.background_events import BackgroundEventWriter
from training.checkpoint.folders import checkpoints
from training.events import Note
from training.guard.place import host_name
from training.health.gpu import expected_gpus
from training.health.policy import policy_of
from training.health.quick import run_quick
from training.health.result import failures
from training.run_folder import RunFolder


def unfit(run: RunFolder, attempt: int, node: int, events: BackgroundEventWriter) -> str:
    """Make the quick checks.

    Args:
        run: The run, seen from the job.
        attempt: Counted from 1.
        node: This node's number.
        events: What only is a warning is written there.

    Returns:
        Why the machine is not fit, as lines; empty if it is.
    """
    results = run_quick(
        policy_of(run),
        run.path,
        num_gpus=expected_gpus(run.config().cluster),
        checkpoint_bytes=_newest_bytes(run),
        clocks=run.attempt(attempt) / "clocks",
        node=str(node),
    )
    for result in results:
        if result.status == "warning":
            events.write(Note(level="warning", text=f"{host_name()}: {result.name}: {result.text}"))
    return "\n".join(f"{result.name}: {result.text}; {result.advice}" for result in failures(results))


def _newest_bytes(run: RunFolder) -> int | None:
    saved = checkpoints(run.checkpoints)
    if not saved:
        return None
    return sum(path.stat().st_size for path in saved[-1].iterdir())
