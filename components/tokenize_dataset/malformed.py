"""What happens when records cannot be used."""

from collections.abc import Sequence

from training.errors import UserError

NUM_NAMED = 10
"""Records that are named of those that cannot be used."""


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
