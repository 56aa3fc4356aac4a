"""The log's line for a step."""

import math

from training.events import TrainStep
from training.step_line import format_step

STEP = TrainStep(
    step=7,
    num_steps=52,
    loss=2.99583,
    grad_norm=1.2341,
    learning_rate=1.9e-4,
    num_tokens=8_000,
    num_supervised=3_000,
    seconds=2.5,
    memory_gib=1.234,
)


def test_without_what_is_not_known():
    assert format_step(STEP) == ("step 7/52  loss 2.9958  grad norm 1.234  lr 1.90e-04  3,200 tokens/s  1.23 GiB")


def test_the_worst_rank_where_it_is_another_than_the_mean():
    line = format_step(STEP.model_copy(update={"worst_rank_loss": 3.5}))
    assert line.startswith("step 7/52  loss 2.9958 (worst 3.5000)  grad norm")
    assert format_step(STEP.model_copy(update={"worst_rank_loss": 2.99583})) == format_step(STEP)


def test_a_step_that_was_left_out_is_marked():
    line = format_step(STEP.model_copy(update={"loss": math.nan, "grad_norm": 0.0, "skipped": True}))
    assert line.startswith("step 7/52  loss nan (left out)  grad norm 0.000")


def test_utilisation_where_it_is_known_and_no_more_than_a_terminal_is_wide():
    step = TrainStep(
        step=1200,
        num_steps=9999,
        loss=2.34567,
        worst_rank_loss=2.98765,
        grad_norm=0.1234,
        learning_rate=1e-4,
        num_tokens=4_000_000,
        num_supervised=2_000_000,
        num_devices=8,
        seconds=10.0,
        # 40 % of eight devices' peak for ten seconds.
        flops=0.4 * 8 * 10 * 989.4e12,
        peak_tflops=989.4,
        memory_gib=71.234,
    )
    line = format_step(step)
    assert line.endswith("400,000 tokens/s  MFU 40 %  71.23 GiB")
    assert len(line) <= 112
