"""A loss, or a gradient, that is no number any more."""

import math

from training.config import RunConfig
from training.errors import UserError
from training.step_report import StepReport


class NonFinite(Exception):
    """The loss or the gradient of a step is not finite. What was saved before is sound.

    Args:
        message: For people.
        step: The step, counted from 1.

    Attributes:
        what: Class of the incident; see `training.events.Incident`.
        step: The step, counted from 1.
    """

    what = "nonfinite"

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def check_step(report: StepReport, step: int, config: RunConfig) -> None:
    """Make sure that a step had something to learn, and did not lose its numbers. The same on every rank.

    Args:
        report: Of the step.
        step: Counted from 1.
        config: The run's, whose fields the messages name.

    Raises:
        UserError: None of its tokens is supervised.
        NonFinite: Its loss or its gradient norm is not finite.
    """
    if not report.supervised:
        raise UserError(
            f"no token of the {config.training.global_batch_size} samples of step {step} is supervised: raise "
            "training.global_batch_size, or look at the data"
        )
    if math.isfinite(report.loss) and math.isfinite(report.grad_norm):
        return
    # Where only the norm is bad, no rank's loss is.
    bad = [n for n, loss in enumerate(report.rank_losses) if loss is not None and not math.isfinite(loss)]
    where = f" (rank {', '.join(map(str, bad))})" if 0 < len(bad) < len(report.rank_losses) else ""
    raise NonFinite(
        f"the loss of step {step} is {report.loss:.6g}{where} and the gradient norm {report.grad_norm:.6g}: lower "
        "training.learning_rate, or raise training.warmup_ratio",
        step,
    )
