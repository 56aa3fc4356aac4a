"""What went wrong in a run, what was done about it, and what it cost."""

from dataclasses import dataclass

from training.ledger.account import Account
from training.ledger.buckets import PER_SECOND


@dataclass(frozen=True)
class Trouble:
    """An attempt that failed.

    Attributes:
        attempt: Its number.
        time: When its ranks ended, in seconds since the epoch.
        what: Class of the incident.
        rank: The first rank that failed, where it is known, as the following.
        host: The machine that it ran on.
        step: The last step that was done.
        fingerprint: The same for incidents of the same cause.
        evidence: For people.
        action: What the supervisor did.
        reason: Why, in one line.
        excluded: Machines that were not used for a while after it.
        steps_lost: Steps that were done, and had to be computed again.
        recovery_s: From the ranks' end until the next step was done; None if none was.
    """

    attempt: int
    time: float
    what: str
    rank: int | None
    host: str
    step: int | None
    fingerprint: str
    evidence: str
    action: str
    reason: str
    excluded: tuple[str, ...]
    steps_lost: int
    recovery_s: float | None


def troubles(account: Account, now: float | None) -> tuple[Trouble, ...]:
    """The incidents of a run, by attempt.

    Args:
        account: The run's.
        now: As for `Account.totals`.
    """
    attempts = account.attempts(now)
    found = []
    for place, (log, close) in enumerate(attempts):
        incident = account.incidents.get(log.number)
        if incident is None:
            continue
        steps_again = [later.first_step_ended for later, _ in attempts[place + 1 :] if later.first_step_ended]
        decided = account.decisions.get(log.number)
        found.append(
            Trouble(
                attempt=log.number,
                time=close.ended / PER_SECOND,
                what=incident.what,
                rank=incident.rank,
                host=incident.host or incident.node,
                step=log.last_step if incident.step is None else incident.step,
                fingerprint=incident.fingerprint,
                evidence=incident.evidence,
                action="" if decided is None else decided.action,
                reason="" if decided is None else decided.reason,
                excluded=() if decided is None else decided.excluded,
                steps_lost=log.num_lost(close.lost_from),
                recovery_s=max(0, steps_again[0] - close.ended) / PER_SECOND if steps_again else None,
            )
        )
    return tuple(found)
