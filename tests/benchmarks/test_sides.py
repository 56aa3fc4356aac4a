"""Every side trains the tiny model to the same losses, and the engine's own benchmarks run on it."""

import importlib

import pytest

from benchmarks import ours, peers
from benchmarks.hyperparameters import Hyperparameters
from benchmarks.options import Options
from benchmarks.result import loss_difference
from benchmarks.settings import FASTEST, LEANEST, OURS_FASTEST, OURS_LEANEST
from benchmarks.torchrun import torchrun
from tests.benchmarks.sides import tiny_work

pytestmark = pytest.mark.slow

HYPER = Hyperparameters(learning_rate=1e-2)
"""Large, so that a second step with other gradients would show."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tiny_work(tmp_path_factory.mktemp("work"), num_steps=3)


@pytest.fixture(scope="module")
def our_result(work, tmp_path_factory):
    return ours.train(work, HYPER, "fp32", tmp_path_factory.mktemp("ours"), **OURS_FASTEST)


def test_our_side_has_every_step(our_result, work):
    assert len(our_result.losses) == len(our_result.seconds) == 3
    assert our_result.losses[2] < our_result.losses[0]
    assert our_result.rate(work.num_supervised) == pytest.approx(work.num_supervised[2] / our_result.seconds[2])
    assert our_result.peak_bytes > 2**27


def test_our_leanest_setting_has_the_same_losses(work, our_result, tmp_path):
    assert loss_difference(ours.train(work, HYPER, "fp32", tmp_path, **OURS_LEANEST), our_result) < 1e-5


@pytest.mark.parametrize("setting", [*FASTEST, *LEANEST], ids=lambda s: f"{s.peer}-{len(s.arguments)}")
def test_a_peer_has_the_same_losses(work, our_result, tmp_path, setting):
    if setting.peer == "trl":
        pytest.importorskip("trl", reason="trl is not installed: pip install .[bench]")
    result = peers.train(work, HYPER, "fp32", tmp_path, setting)
    assert len(result.seconds) == 3 and result.peak_bytes > 2**27
    assert loss_difference(result, our_result) < 1e-4


def test_ranks_that_fail_show_their_log():
    with pytest.raises(RuntimeError, match=r"No module named benchmarks\.nothing"):
        torchrun("benchmarks.nothing", "", 1, {})


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("matmul", "matmul.fp32.share"),
        ("overhead", "overhead.fp32.share_beyond_the_passes"),
        ("guard", "guard.node_share_of_a_core"),
        ("checkpoint", "checkpoint.fp32.step_while_verifying_over_plain"),
        ("load", "load.beyond_shard_mib"),
        ("packed_reading", "packed_reading.fp32.share_of_a_step"),
    ],
)
def test_a_benchmark_of_the_engine_runs(monkeypatch, work, tmp_path, name, last):
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(module, "quickstart_work", lambda store, steps: work)
    measured = module.measure(Options(tmp_path, repetitions=1))
    assert measured[-1].name == last and measured[-1].goal != "-"
    # A difference of two times may come out either way.
    differences = ("slower_s", "share_of_a_step", "share_of_processor_time")
    positive = [figure for figure in measured[:-1] if not figure.name.endswith(differences)]
    assert all(value > 0 for figure in positive for value in figure.values)
