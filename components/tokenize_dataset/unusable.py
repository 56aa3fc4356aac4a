"""Rows of which nothing can be made."""


class UnusableRow(ValueError):
    """A row of which nothing can be made; the message is the rest of a sentence that begins with the row."""


def check_characters(text: str) -> None:
    """Check that a text can be written as UTF-8, which tokenizers take.

    Raises:
        UnusableRow: It holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnusableRow(
            f"holds half of a surrogate pair (\\u{ord(text[error.start]):x}), which is no character: write the "
            "text anew"
        ) from None
