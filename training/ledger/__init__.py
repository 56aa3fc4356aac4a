"""The goodput ledger: every second of a run's life in one bucket, by its events and its attempts' records."""

from training.ledger.account import Account
from training.ledger.buckets import BUCKETS, MEANINGS, Bucket, Interval, Totals
from training.ledger.incidents import Trouble
from training.ledger.ledger import Ledger
from training.ledger.sentence import goodput_line

__all__ = ["BUCKETS", "MEANINGS", "Account", "Bucket", "Interval", "Ledger", "Totals", "Trouble", "goodput_line"]
