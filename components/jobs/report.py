"""A page about an attempt that failed: what, where, the last words, and what to do."""

from pathlib import Path

from components.jobs.policy import Decision
from training.events import Incident
from training.run_folder import RunFolder

NAME = "report.md"

_MEANINGS = {
    "invalid": "the configuration or the data is wrong",
    "interrupted": "it was asked to stop, and saved",
    "signal": "a rank was killed",
    "exception": "a rank raised an error",
    "oom": "a pod used more memory than it may: ask for more (cluster.memory_per_node), or train leaner",
    "evicted": "the cluster removed a pod",
    "preempted": "the cluster needed a machine; the ranks saved and left",
    "queue_timeout": "the queue did not admit the job in time",
    "start_timeout": "the pods did not start in time; what they waited for is below",
    "run_timeout": "it took longer than it may",
    "stall_timeout": "nothing was heard of the ranks for too long",
}


def write_report(folder: RunFolder, incident: Incident, decision: Decision) -> Path:
    """Write `attempts/<n>/report.md`; returns its path."""
    path = folder.attempt(incident.attempt) / NAME
    path.write_text(failure_page(folder, incident, decision), encoding="utf-8")
    return path


def failure_page(folder: RunFolder, incident: Incident, decision: Decision) -> str:
    """Markdown about an attempt that failed."""
    who = "" if incident.rank is None else f", first at rank {incident.rank}"
    where = f" in the pod `{incident.node}`" if incident.node else ""
    code = "" if incident.exit_code is None else f" (exit code {incident.exit_code})"
    meaning = _MEANINGS.get(incident.what, incident.what)
    return (
        f"## {folder.run}: attempt {incident.attempt} failed\n\n"
        f"**{incident.what}**{code}{who}{where}: {meaning}.\n\n"
        f"{'Next' if decision.retry else 'It ends here'}: {decision.reason}.\n\n"
        f"{fenced(incident.evidence)}\n\n"
        f"Logs of every rank and pod: `{folder.attempt(incident.attempt)}`\n"
    )


def fenced(words: str) -> str:
    """The words as a block of text, which they cannot close."""
    fence = "`" * max(3, _longest_ticks(words) + 1)
    return f"{fence}text\n{words.strip() or '(no words were left)'}\n{fence}"


def newest_report(folder: RunFolder) -> str | None:
    """The page of the last attempt; None if that one did not fail."""
    last = max(folder.attempts(), default=0)
    path = folder.attempt(last) / NAME
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _longest_ticks(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
