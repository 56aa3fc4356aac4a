"""Names and texts as MLflow takes them."""

from training.store import fingerprint

_LENGTH = 200
"""MLflow allows 250 characters, of which some are left to what is put around a name."""

TEXT_LENGTH = 5000
"""Of tags, and of descriptions in a database, which refuses longer ones."""

_REST = "\n\n… the rest is in the README.md among the version's files."


def safe_name(text: str) -> str:
    """A text as part of the name of a metric or a parameter.

    Characters that MLflow refuses become `_`, and what it would read as a way through folders is left out. Of a
    text that is too long the end is kept, which tells most of a path.
    """
    parts = ["".join(map(_safe, part)) for part in text.split("/") if part not in ("", ".", "..")]
    name = "/".join(parts) or "_"
    return name if len(name) <= _LENGTH else f"{fingerprint(text=text)[:8]}_{name[9 - _LENGTH :]}"


def shortened(text: str, length: int = TEXT_LENGTH) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shortened_card(card: str) -> str:
    """Whole lines of a model card, as many as a version's description may have."""
    if len(card) <= TEXT_LENGTH:
        return card
    return card[: TEXT_LENGTH - len(_REST) + 1].rpartition("\n")[0] + _REST


def _safe(letter: str) -> str:
    return letter if letter.isalnum() or letter in "_-. " else "_"
