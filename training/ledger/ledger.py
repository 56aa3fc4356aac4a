"""A run's ledger at one moment, with all that a page about it shows."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from training.events import Alert, EventReader
from training.ledger.account import Account
from training.ledger.buckets import Bucket, Interval, Totals
from training.ledger.incidents import Trouble, troubles
from training.run_folder import RunFolder

_DEAD_S = 120.0
"""A supervisor without a heartbeat for so long is dead; it beats every few seconds."""


@dataclass(frozen=True)
class Ledger:
    """Every second of a run's life, from its first attempt's start to its end, or until now.

    Attributes:
        run: The run's name.
        totals: By bucket; None before the first attempt.
        intervals: Its life in the order of time, without a gap or an overlap, over all attempts.
        incidents: By attempt.
        alerts: In the order that they were told in.
        steps_lost: Steps that were done, and had to be computed again.
        is_live: Whether the run goes on.
    """

    run: str
    totals: Totals | None
    intervals: tuple[Interval, ...]
    incidents: tuple[Trouble, ...]
    alerts: tuple[Alert, ...]
    steps_lost: int
    is_live: bool

    @classmethod
    def of(cls, folder: RunFolder, now: float | None = None) -> "Ledger":
        """Read a run's events and records.

        What is missing there, half-written or out of order costs detail, never a second: times are kept within
        their attempt, and what is not told of goes on with what was told last.

        Args:
            folder: The run's.
            now: Until when, in seconds since the epoch, for a run that goes on. Unset: the time of day, if its
                supervisor lives; else the run ends with what is known of it.
        """
        account = Account(folder)
        account.take(EventReader(folder.events).poll(), now or time.time())
        if now is None:
            now = time.time() if account.goes_on() and _beats(folder) else None
        return cls.from_account(folder.run, account, now)

    @classmethod
    def from_account(cls, run: str, account: Account, now: float | None) -> "Ledger":
        """The ledger as an account has it; see `Account.totals`."""
        return cls(
            run=run,
            totals=account.totals(now),
            intervals=tuple(account.intervals(now)),
            incidents=troubles(account, now),
            alerts=tuple(account.alerts),
            steps_lost=sum(log.num_lost(close.lost_from) for log, close in account.attempts(now)),
            is_live=now is not None,
        )

    @property
    def seconds(self) -> Mapping[Bucket, float]:
        """By bucket, in the order of `BUCKETS`; those without time are left out."""
        return {} if self.totals is None else self.totals.seconds

    @property
    def goodput(self) -> float:
        """See `Totals.goodput`."""
        return 0.0 if self.totals is None else self.totals.goodput


def _beats(folder: RunFolder) -> bool:
    try:
        changed = folder.seen_from("training").launcher_heartbeat.stat().st_mtime
    except OSError:
        return False
    return time.time() - changed < _DEAD_S
