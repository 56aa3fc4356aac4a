"""A page about an attempt that failed: what, where, the last words, and what is done about it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from components.jobs.exclusions import Exclusion, exclusions
from components.jobs.meanings import meaning_of
from components.jobs.policy import Decision
from training.events import Incident
from training.patience import patiently
from training.run_folder import RunFolder
from training.store import write_atomically

NAME = "report.md"

_NEXT = {
    "restart_in_place": "Next, in the same place",
    "restart_elsewhere": "Next, as another job",
    "shrink": "Next, with fewer nodes",
    "stop": "It ends here",
}


def write_report(folder: RunFolder, incident: Incident, decision: Decision) -> Path:
    """Write `attempts/<n>/report.md`; returns its path."""
    path = folder.attempt(incident.attempt) / NAME
    page = failure_page(folder, incident, decision)
    patiently(lambda: write_atomically(path, page))
    return path


def failure_page(folder: RunFolder, incident: Incident, decision: Decision) -> str:
    """Markdown about an attempt that failed."""
    attempt = folder.attempt(incident.attempt)
    who = "" if incident.rank is None else f", first at rank {incident.rank}"
    where = f" in the pod `{incident.node}`" if incident.node else ""
    host = f" on `{incident.host}`" if incident.host else ""
    code = "" if incident.exit_code is None else f" (exit code {incident.exit_code})"
    step = "" if incident.step is None else f", at step {incident.step}"
    stacks = sorted((attempt / "stacks").glob("rank-*.txt"))
    parts = [
        f"## {folder.run}: attempt {incident.attempt} failed",
        f"**{incident.what}**{code}{who}{where}{host}{step}: {meaning_of(incident.what, folder.purpose)}.",
        f"{_NEXT[decision.action]}: {decision.reason}.",
        *_excluded(exclusions(folder)),
        fenced(incident.evidence),
        f"Fingerprint: `{incident.fingerprint.replace('`', '')}`" if incident.fingerprint else "",
        f"Stacks of the ranks when they hung: {', '.join(f'`{path}`' for path in stacks)}" if stacks else "",
        f"Logs of every rank and pod: `{attempt}`",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def fenced(words: str) -> str:
    """The words as a block of text, which they cannot close."""
    fence = "`" * max(3, _longest_ticks(words) + 1)
    return f"{fence}text\n{words.strip() or '(no words were left)'}\n{fence}"


def newest_report(folder: RunFolder) -> str | None:
    """The page of the last attempt; None if that one did not fail."""
    last = max(folder.attempts(), default=0)
    path = folder.attempt(last) / NAME
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _excluded(entries: Iterable[Exclusion]) -> list[str]:
    lines = [
        f"- `{entry.host}` until {datetime.fromtimestamp(entry.until, UTC):%Y-%m-%d %H:%M} UTC: {entry.reason}"
        for entry in entries
    ]
    return ["Machines that are not used:\n\n" + "\n".join(lines)] if lines else []


def _longest_ticks(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
