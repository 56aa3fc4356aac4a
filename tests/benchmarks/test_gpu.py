"""The GPU's script, tried on the CPU."""

import pytest
import torch

from benchmarks import gpu

TINY = [
    "--device",
    "cpu",
    "--model",
    "tiny",
    "--sequence-length",
    "32",
    "--precision",
    "fp32",
    "--batch-size",
    "1",
]


@pytest.mark.parametrize("more", [[], ["--activation-checkpointing", "full", "--documents", "3"]])
def test_it_runs_on_a_cpu_where_asked(capsys, monkeypatch, more):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert gpu.main([*TINY, "--steps", "2", "--warmup", "1", *more]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["device"] == "cpu" and shown["model"].startswith("tiny, 106,816 parameters, float32")
    assert float(shown["tokens_per_s"]) > 0 and float(shown["tflops"]) > 0
    assert shown["mfu"].startswith("not known")
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu.main([]) == gpu.EXIT_NO_GPU
    assert "no CUDA GPU" in capsys.readouterr().err


def test_the_shape_fits_the_free_memory():
    assert gpu.fitting_shape(2**30) == "tiny"
    assert gpu.fitting_shape(80 * 2**30) == "1b"
    assert gpu.fitting_shape(280 * 2**30) == "8b"


def test_the_shapes_have_the_parameters_that_their_names_say():
    sizes = {name: shape.parameters / 1e9 for name, shape in gpu.SHAPES.items()}
    assert sizes["1b"] == pytest.approx(1.5, abs=0.1)
    assert sizes["3b"] == pytest.approx(3.6, abs=0.1)
    assert sizes["8b"] == pytest.approx(8.0, abs=0.1)
