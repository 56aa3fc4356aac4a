"""What happens to documents that are longer than a sample."""

from training.config import DataConfig


def long_documents(data: DataConfig) -> str:
    """`data.long_documents` with `auto` resolved: cut, split or refuse; `data.format` is resolved already."""
    if data.long_documents != "auto":
        return data.long_documents
    # The end of a text is as good as its beginning; an answer without its question is not.
    return "split" if data.format == "text" else "cut"


def pieces(num_tokens: int, capacity: int, choice: str) -> list[slice]:
    """The parts of a document that become documents of their own.

    Args:
        num_tokens: Tokens of the document.
        capacity: Most tokens of a part, at least 2.
        choice: `cut` takes the first part alone; `split` takes all.

    Returns:
        Slices of the document. Each but the first begins with the last token of the one before, so that every
        token but the first is predicted once.
    """
    starts = range(0, max(num_tokens - 1, 1), capacity - 1) if choice == "split" else [0]
    return [slice(start, start + capacity) for start in starts]
