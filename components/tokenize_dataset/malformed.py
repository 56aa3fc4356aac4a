"""What happens when records cannot be used."""

import re
from collections.abc import Sequence

from training.errors import UserError

NUM_NAMED = 10
"""Records that are named of those that cannot be used."""

_ASIDE = re.compile(r" \([^()]*\)")
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_NUMBER = re.compile(r"\b\d[\d,.]*\b")


def reason_of(problem: str) -> str:
    """What is wrong with a record, in the words of all records of which the same is wrong.

    Args:
        problem: As of `Malformed`. Numbers, what is quoted or stands in parentheses, and the remedy are left out.
    """
    # Quotes first: they may hold anything.
    return _NUMBER.sub("…", _ASIDE.sub("", _QUOTED.sub("…", problem)).split(": ")[0])


def check_malformed(count: int, most: int, named: Sequence[str]) -> None:
    """Stop where more records cannot be used than the user allows.

    Args:
        count: Records that cannot be used.
        most: `data.max_malformed_rows`.
        named: The first of them, each with what is wrong.

    Raises:
        UserError: There are more; names the first.
    """
    if count <= most:
        return
    more = f"; and {count - NUM_NAMED:,} more" if count > NUM_NAMED else ""
    raise UserError(
        f"{count:,} record{'' if count == 1 else 's'} cannot be used, and data.max_malformed_rows allows "
        f"{most:,}: {'; '.join(named[:NUM_NAMED])}{more}. Mend what is wrong, or raise data.max_malformed_rows to "
        "leave such records out"
    )
