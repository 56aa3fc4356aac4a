"""What held-out rows ask, for generations beside the reference."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from components.tokenize_dataset.documents import Encoder
from components.tokenize_dataset.encode import Setup
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
    told: set[int] = set()
    # In ASCII, because some readers take U+2028 for the end of a line.
    with path.open("w", encoding="ascii") as file:

        def write(source: int, prompt: dict[str, str]) -> None:
            told.add(source)
            file.write(json.dumps({**prompt, "source": sources[source].name}) + "\n")

        for row, prompt in spool.prompts():
            if fates[row] == Fate.HELDOUT:
                write(int(np.searchsorted(numbers, row, side="right")), prompt)
        # What is held out of a source where no row was likely to be was not known when its rows were encoded.
        for source in range(spool.num_sources):
            extent = spool.range_of(source)
            (held_out,) = (fates[extent.start : extent.stop] == Fate.HELDOUT).nonzero()
            if source not in told and setup.shapes[source].format != "text" and len(held_out):
                for prompt in _encode_again(setup, source, sources[source], held_out.tolist()):
                    write(source, prompt)


def _encode_again(setup: Setup, source: int, rows: Source, places: list[int]) -> Iterator[dict[str, str]]:
    """Prompts of the rows of a source at these places, ascending, among the rows that can be used."""
    encoder = Encoder(setup.data, setup.shapes[source], setup.tokenizer)
    place = 0
    for row in rows_of(rows):
        if place > places[-1]:
            return
        if isinstance(row, Row):
            (encoded,) = encoder.encode([row])
            if isinstance(encoded, Malformed):
                continue
            if place in places and encoded.prompt is not None:
                yield encoded.prompt
            place += 1
