"""What is put in order when a pipeline has ended."""

from components.jobs.attempts import forget_verdict
from components.jobs.report import fenced, newest_report
from components.jobs.supervisor import stop_abandoned
from components.step import Step
from components.timeline.page import write_timeline
from components.tracking.closing import end_in_mlflow
from training.events import Span, read_events
from training.store import Store


def clean_up(step: Step, state: str) -> str:
    """Stop jobs of the run that are still there, remove what killed writers left in the store, end it in MLflow.

    Args:
        step: The step's surroundings.
        state: How the pipeline ended, as Kubeflow says it.

    Returns:
        Markdown for people: how the pipeline ended, and why one of its jobs failed if it did.
    """
    is_stopped = state.startswith("CANCEL") or step.folder.stop_request.exists()
    step.folder.stop_request.unlink(missing_ok=True)
    jobs = [step.folder, step.folder.seen_from("evaluation"), step.folder.seen_from("health")]
    for folder in jobs:
        forget_verdict(folder)
    stopped = sum(map(stop_abandoned, jobs))
    swept = Store(step.folder.root).sweep()
    if stopped:
        step.note(f"stopped {stopped} job(s) that were still running")
    if swept:
        step.note(f"removed {len(swept)} unfinished folder(s) from the store")
    if step.folder.attempts():
        write_timeline(step.folder)
    # Last, since it may have to wait. A pipeline that succeeded has said so itself.
    if state != "SUCCEEDED":
        end_in_mlflow(step.folder, "KILLED" if is_stopped else "FAILED", step.note)
    step.detail = f"the pipeline ended: {state}"
    return next((report for job in jobs if (report := newest_report(job))), None) or _page(step, state)


def _page(step: Step, state: str) -> str:
    """How the pipeline ended, and the words of the step that failed last."""
    page = f"## {step.run}\n\nThe pipeline ended: {state}.\n"
    spans = [event for event in read_events(step.folder.events) if isinstance(event, Span)]
    # Of a run that was started several times, only the last start counts.
    latest = {span.name: span for span in spans if span.source == span.name}
    failed = [span for span in latest.values() if span.phase == "end" and not span.ok]
    if state == "SUCCEEDED" or not failed:
        return page
    last = max(failed, key=lambda span: span.time)
    return f"{page}\n`{last.name}` failed:\n\n{fenced(last.detail)}\n"
