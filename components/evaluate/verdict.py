"""Whether training helped, in a sentence."""

import math
from dataclasses import dataclass
from typing import Literal

from components.evaluate import formats
from components.evaluate.results import ModelResult

_UNCHANGED = 0.005
"""Difference of losses, in nats per token, below which perplexities are within half a percent."""


@dataclass(frozen=True)
class Verdict:
    """The outcome in words.

    Attributes:
        outcome: Its class.
        word: The outcome as one word with a sign, so that it does not rest on colour.
        sentence: What it means.
    """

    outcome: Literal["better", "worse", "unchanged"]
    word: str
    sentence: str


def verdict_on(base: ModelResult, tuned: ModelResult) -> Verdict:
    """Say in one sentence whether the tuned model predicts the held-out rows better."""
    tokens = f"{formats.as_count(tuned.num_supervised)} held-out tokens"
    before, after = formats.as_perplexity(base.perplexity), formats.as_perplexity(tuned.perplexity)
    difference = tuned.loss - base.loss
    if abs(difference) < _UNCHANGED:
        return Verdict(
            "unchanged",
            "= No change",
            f"On {tokens}, both perplexities are within half a percent of each other.",
        )
    went = "fell" if difference < 0 else "rose"
    change = tuned.changes["base"]
    if change.low is not None and change.high is not None and change.low <= 0 <= change.high:
        return Verdict(
            "unchanged",
            "≈ Not certain",
            f"On {tokens}, perplexity {went} from {before} to {after}, but the 95 % confidence interval of the "
            f"change in loss, {formats.as_interval(change, formats.as_change)}, includes no change. Hold out "
            "more rows to tell.",
        )
    # exp of the difference is the ratio of perplexities.
    if difference < 0:
        share = formats.as_percent(1 - math.exp(difference))
        return Verdict("better", "▼ Better", f"On {tokens}, perplexity fell from {before} to {after}, by {share}.")
    share = formats.as_percent(math.exp(min(difference, 700)) - 1)
    return Verdict(
        "worse",
        "▲ Worse",
        f"On {tokens}, perplexity rose from {before} to {after}, by {share}. The usual causes are too high a "
        "learning rate, and too many epochs on little data: then training loss ends far below held-out loss.",
    )
