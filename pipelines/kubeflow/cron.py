"""Cron expressions as Kubeflow Pipelines takes them, and when they fire.

The server's parser is robfig/cron 1: seconds come first, and of five fields it takes the *last* to be missing, so
the usual five fields would mean something else there. Here five fields are the usual ones, and seconds are added.
Its rules are kept to the letter, also where they are not those of other crons: Sunday is 0 and never 7, a range
does not wrap around, and a day has to match both day fields if one of them begins with a star.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo

from training.errors import UserError

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("second", 0, 59, {}),
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_HORIZON = timedelta(days=5 * 366)


@dataclass(frozen=True)
class Cron:
    """A parsed expression.

    Attributes:
        text: Its six fields, as the server gets them.
    """

    text: str
    _allowed: tuple[frozenset[int], ...]
    _starred_day: bool

    def after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """The first time after `moment` at which it fires, read in `zone`; None if there is none in five years.

        Steps are taken in UTC, so an hour that the clock skips is skipped, and one that it repeats comes twice.
        """
        now = moment.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        end = now + _HORIZON
        seconds, minutes, hours, *_ = self._allowed
        while now < end:
            local = now.astimezone(zone)
            if not self._day_matches(local):
                midnight = datetime.combine(local.date() + timedelta(days=1), time(), zone)
                now = midnight.astimezone(UTC)
            elif local.hour not in hours:
                now += timedelta(seconds=3600 - 60 * local.minute - local.second)
            elif local.minute not in minutes:
                now += timedelta(seconds=60 - local.second)
            elif local.second not in seconds:
                now += timedelta(seconds=1)
            else:
                return now
        return None

    def _day_matches(self, local: datetime) -> bool:
        days, months, weekdays = self._allowed[3:]
        if local.month not in months:
            return False
        by_day, by_weekday = local.day in days, local.isoweekday() % 7 in weekdays
        return (by_day and by_weekday) if self._starred_day else (by_day or by_weekday)


def parse_cron(text: str) -> Cron:
    """Parse five usual fields, six with the seconds first, or a shorthand such as @daily.

    Raises:
        UserError: The server would refuse it, or it never fires.
    """
    given = text
    text = _SHORTHANDS.get(text.strip().lower(), text)
    fields = text.split()
    if len(fields) == 5:
        fields = ["0", *fields]
    if len(fields) != 6:
        raise UserError(
            f"the cron expression '{given}' has {len(fields)} fields: give five (minute, hour, day of month, "
            f"month, day of week), six with seconds first, or one of {', '.join(_SHORTHANDS)}"
        )
    try:
        allowed = tuple(_values(field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True))
    except ValueError as error:
        raise UserError(f"the cron expression '{given}' is not valid: {error}") from None
    starred = any(part[:1] in ("*", "?") for field in (fields[3], fields[5]) for part in field.split(","))
    cron = Cron(" ".join(fields), allowed, starred)
    if cron.after(datetime.now(UTC), UTC) is None:
        raise UserError(f"the cron expression '{given}' never fires: no month has such a day")
    return cron


def _values(text: str, name: str, low: int, high: int, names: Mapping[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        first, dash, last = span.partition("-")
        if first in ("*", "?") and not dash:
            start, end = low, high
        else:
            start = _number(first, name, names)
            end = _number(last, name, names) if dash else high if slash else start
        step = _number(step_text, name, {}) if slash else 1
        if step == 0:
            raise ValueError(f"the step in '{part}' of the {name} is 0, and has to be at least 1")
        if step > high:
            raise ValueError(f"the step in '{part}' of the {name} is above {high}, so it would never be taken")
        if start < low or end > high:
            raise ValueError(f"'{part}' of the {name} is outside of {low} to {high}")
        if start > end:
            raise ValueError(f"the range '{part}' of the {name} ends before it begins: write it as two ranges")
        values.update(range(start, end + 1, step))
    return frozenset(values)


def _number(text: str, name: str, names: Mapping[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not (text.isascii() and text.isdigit()):
        known = f", or a name from {', '.join(names)}" if names else ""
        raise ValueError(f"'{text}' of the {name} is not a number{known}")
    return int(text)
