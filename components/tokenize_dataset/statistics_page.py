"""The page that shows what the data set holds and what was left out of it."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, MaxNLocator

from components.charts import QUIET, STYLE, TRAIN, TUNED, as_svg, new_figure
from components.pages import page_environment
from components.tokenize_dataset.split import Fate
from components.tokenize_dataset.spool import as_ids_and_labels
from components.tokenize_dataset.statistics import SourceStatistics
from training.config import DataConfig
from training.data import IGNORE

_MOST_TOKENS = 600
"""Tokens of an example that are shown."""


class Piece(NamedTuple):
    """A part of an example.

    Attributes:
        text: Decoded.
        supervised: Whether the model learns to say it.
    """

    text: str
    supervised: bool


class Example(NamedTuple):
    """A document, decoded.

    Attributes:
        pieces: Its beginning.
        num_more: Tokens that are not shown.
    """

    pieces: list[Piece]
    num_more: int

    @classmethod
    def of(cls, tokens: np.ndarray, tokenizer: Any) -> Self:
        """Decode spooled tokens, `TOKEN` [tokens]."""
        ids, labels = as_ids_and_labels(tokens[:_MOST_TOKENS])
        # A label stands one position before the token that it names.
        supervised = np.concatenate([[False], labels[:-1] != IGNORE])
        (changes,) = (supervised[1:] != supervised[:-1]).nonzero()
        bounds = [0, *(changes + 1).tolist(), len(ids)]
        pieces = [
            Piece(tokenizer.decode(ids[start:end]), bool(supervised[start]))
            for start, end in itertools.pairwise(bounds)
        ]
        return cls(pieces, len(tokens) - len(ids))


def render_statistics(
    data: DataConfig,
    facts: Mapping[str, Any],
    statistics: Sequence[SourceStatistics],
    examples: Sequence[Example],
) -> str:
    """Render the page: one HTML file without scripts or requests, the same for the same data.

    Rows and names are untrusted: all of it is escaped.

    Args:
        data: The config.
        facts: What the manifest records.
        statistics: Of every source, those to train on first.
        examples: One for each source to train on.
    """
    environment = page_environment(Path(__file__).parent)
    environment.filters |= {"count": "{:,}".format, "percent": _percent, "passes": "{:.2f}".format}
    return environment.get_template("statistics.html.j2").render(
        data=data,
        facts=facts,
        sources=[
            {
                "statistics": each,
                "example": examples[number] if number < len(examples) else None,
                "chart": Markup(_lengths_chart(each, number, data.sequence_length)),
                "dropped": _dropped(each),
            }
            for number, each in enumerate(statistics)
        ],
        Fate=Fate,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _dropped(each: SourceStatistics) -> dict[str, int]:
    reasons = {
        "Dropped: the same as an earlier row": each.fates[Fate.DUPLICATE],
        "Dropped: held out too": each.fates[Fate.LEAKED],
        **{f"Left out: {reason}": number for reason, number in each.reading.left_out.most_common()},
    }
    return {reason: number for reason, number in reasons.items() if number}


def _lengths_chart(each: SourceStatistics, number: int, sequence_length: int) -> str:
    """Rows by their length, with the longest that a sample holds."""
    (used,) = each.lengths.nonzero()
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    bins = np.arange(first, last + 1)
    name = f"lengths-{number}"
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = new_figure(width=820, height=220)
        axes = figure.subplots()
        figure.subplots_adjust(left=64 / 820, right=1 - 22 / 820, top=1 - 26 / 220, bottom=44 / 220)
        axes.set_axisbelow(True)
        axes.bar(bins, each.lengths[first : last + 1], width=0.9, align="edge", color=TRAIN)
        limit = 2 * float(np.log2(sequence_length))
        # Half a bin more on each side, and the limit where it is near.
        axes.set_xlim(first - 0.5, max(last + 1.5, limit + 0.5 if limit < last + 6 else 0))
        if limit < axes.get_xlim()[1]:
            axes.axvline(limit, color=TUNED, linestyle=(0, (4, 4)))
            axes.annotate(
                f"data.sequence_length {sequence_length:,}",
                (limit, 1.03),
                xycoords=("data", "axes fraction"),
                ha="right" if limit > (first + last) / 2 else "left",
                va="bottom",
                color=TUNED,
            )
        axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 2, 4, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{2 ** (value / 2):,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlabel("tokens of a row")
        axes.tick_params(axis="x", color=QUIET)
        most = int(each.lengths.argmax())
        summary = (
            f"Rows by their length in tokens; most have {2 ** (most / 2):,.0f} to {2 ** ((most + 1) / 2):,.0f}. "
            f"{each.num_long:,} are longer than data.sequence_length, {sequence_length:,}."
        )
        return as_svg(figure, name, summary)
