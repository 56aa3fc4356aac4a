"""What held-out rows ask, for generations beside the reference."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from components.tokenize_dataset.documents import Encoder
from components.tokenize_dataset.encode import Setup
from components.tokenize_dataset.row_hash import falls_below
from components.tokenize_dataset.split import Fate
from components.tokenize_dataset.spool import Spool
from training.sources.rows import Malformed, Row, Source, rows_of


def write_prompts(path: Path, setup: Setup, sources: Sequence[Source], spool: Spool, fates: np.ndarray) -> None:
    """Write a line for each held-out row that asks something: prompt, question, reference, and the source's name.

    Args:
        path: File to write.
        setup: How rows are encoded.
        sources: All of them.
        spool: Holds the prompts of rows that were likely to be held out.
        fates: `Fate` uint8 [rows of all sources].
    """
    numbers = np.cumsum([len(spool.range_of(source)) for source in range(spool.num_sources)])
    # In ASCII, because some readers take U+2028 for the end of a line.
    with path.open("w", encoding="ascii") as file:

        def write(source: int, prompt: dict[str, str]) -> None:
            file.write(json.dumps({**prompt, "source": sources[source].name}) + "\n")

        for row, prompt in spool.prompts():
            if fates[row] == Fate.HELDOUT:
                write(int(np.searchsorted(numbers, row, side="right")), prompt)
        # That rows are held out because a source had none otherwise was not known when they were encoded.
        for source in range(setup.first_heldout if setup.data.heldout is None else 0):
            places = _unlikely(spool, source, fates, setup.data.heldout_fraction)
            if setup.shapes[source].format != "text" and places:
                for prompt in _encode_again(setup, source, sources[source], places):
                    write(source, prompt)


def _unlikely(spool: Spool, source: int, fates: np.ndarray, fraction: float) -> set[int]:
    """Places of a source's rows that are held out although their hash is not below the fraction."""
    start = spool.range_of(source).start
    places: set[int] = set()
    for first, rows in spool.rows(source):
        held_out = fates[first : first + len(rows)] == Fate.HELDOUT
        unlikely = held_out & ~falls_below(rows["hash"][:, 0], fraction)
        places.update((first - start + unlikely.nonzero()[0]).tolist())
    return places


def _encode_again(setup: Setup, source: int, rows: Source, places: set[int]) -> Iterator[dict[str, str]]:
    """Prompts of the rows of a source at these places among the rows that can be used."""
    encoder = Encoder(setup.data, setup.shapes[source], setup.tokenizer)
    place, last = 0, max(places)
    for row in rows_of(rows):
        if place > last:
            return
        if isinstance(row, Row):
            (encoded,) = encoder.encode([row])
            if isinstance(encoded, Malformed):
                continue
            if place in places and encoded.prompt is not None:
                yield encoded.prompt
            place += 1
