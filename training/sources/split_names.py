"""Which split a file is of, as its name tells."""

import re
from pathlib import PurePosixPath

_OF_HUB = re.compile(r"(.+)-\d{5}-of-\d{5}")
"""How the hub names the files of a split."""

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words that tell a split, as `datasets` takes them."""

_WORDS = {word: split for split, words in _SPLITS.items() for word in words}


def split_of(path: str) -> str | None:
    """The split of a file: as the hub names files, or by a folder or a word of the name; None if nothing tells it.

    Args:
        path: Relative to the folder of the data set.
    """
    *folders, file = PurePosixPath(path.lower()).parts
    if match := _OF_HUB.match(PurePosixPath(path).name):
        return match[1]
    words = (*folders, *re.split(r"[-._ \d]+", file))
    return next((_WORDS[word] for word in words if word in _WORDS), None)
