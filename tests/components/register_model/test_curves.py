"""The curves of a run in MLflow."""

from collections.abc import Callable

import pytest

from tests.registering import START, client_of, register
from training.events import Evaluation, EventWriter, TrainStep
from training.run_folder import RunFolder


def test_what_was_measured_is_logged_and_nothing_else(ready_run: Callable[..., RunFolder]) -> None:
    folder = ready_run()
    writer = EventWriter(folder.events, "rank-0", attempt=3)
    # The steps before are of a run that measured less.
    writer.write(
        TrainStep(
            time=START + 200,
            step=7,
            num_steps=7,
            loss=1.0,
            worst_rank_loss=1.5,
            grad_norm=1.0,
            learning_rate=1e-4,
            num_tokens=8000,
            num_supervised=400,
            num_positions=10_000,
            num_devices=4,
            seconds=2.0,
            data_s=0.25,
            compute_s=1.0,
            optimizer_s=0.25,
            checkpoint_s=0.25,
            evaluation_s=0.125,
            flops=1.3e15,
            peak_tflops=400.0,
            memory_gib=1.5,
        )
    )
    made = register(folder)
    client = client_of(made.tracking_uri)
    logged = client.get_run(made.mlflow_run_id).data.metrics
    new = {
        "worst_rank_loss": 1.5,
        "tokens_per_s_per_device": 1000,
        "fill": 0.8,
        "tflops_per_device": 200,
        "mfu": 0.5,
        "seconds_data": 0.25,
        "seconds_compute": 1.0,
        "seconds_optimizer": 0.25,
        "seconds_checkpoint": 0.25,
        "seconds_evaluation": 0.125,
        "seconds_other": 0.125,
    }
    assert {name: logged[f"train/{name}"] for name in new} == pytest.approx(new)
    for name in set(new) - {"tokens_per_s_per_device"}:
        assert [point.step for point in client.get_metric_history(made.mlflow_run_id, f"train/{name}")] == [7]
    # Nothing was measured on held-out rows while it trained.
    assert "heldout/loss" not in logged


def test_held_out_losses_of_the_training_stand_at_their_steps(ready_run: Callable[..., RunFolder]) -> None:
    folder = ready_run()
    for attempt, measured in ((1, {2: 2.75, 4: 2.5}), (2, {4: 2.25, 6: 2.125})):
        writer = EventWriter(folder.events, f"rank-0-{attempt}", attempt)
        for step, loss in measured.items():
            time = START + 100 * (attempt - 1) + step
            writer.write(Evaluation(time=time, name="step", step=step, loss=loss, num_supervised=9))
    EventWriter(folder.events, "evaluate").write(Evaluation(name="tuned", loss=2.0, num_supervised=9))
    made = register(folder)
    history = client_of(made.tracking_uri).get_metric_history(made.mlflow_run_id, "heldout/loss")
    # Step 4 was taken twice, and the second attempt's counts.
    assert [(point.step, point.value) for point in history] == [(2, 2.75), (4, 2.25), (6, 2.125)]
    assert history[1].timestamp == int((START + 104) * 1000)
