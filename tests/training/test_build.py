"""Techniques that change how a step is computed, and not what: gradients stay what they are without."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runs import as_sample, llama_config, packed_rows, run_ranks, save_model
from training import float8
from training.activation import checkpoint_activations
from training.build import build_model
from training.config import RunConfig
from training.data import collate
from training.errors import UserError
from training.head import SummedLoss
from training.model import build_on_meta, load_weights, materialize

CPU = torch.device("cpu")


def config_of(**training):
    return RunConfig.model_validate(
        {"model": {"name": "org/tiny"}, "data": {"train": "org/data"}, "training": training}
    )


def gradients(source, compute=torch.float64, num_batches=1, **training):
    model = build_model(config_of(**training), source, CPU, compute)
    load_weights(model, source)
    loss = SummedLoss(model)
    for seed in range(num_batches):
        loss(collate([as_sample(packed_rows(1, seed=seed)[0])], CPU)).backward()
    return {
        name.replace("_checkpoint_wrapped_module.", ""): p.grad.full_tensor()
        for name, p in model.named_parameters()
    }


def same_gradients(rank, source, num_batches, tolerance, training):
    plain = gradients(source, num_batches=num_batches)
    found = gradients(source, num_batches=num_batches, **training)
    for name, gradient in plain.items():
        assert torch.allclose(found[name], gradient, rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_activations_give_the_same_gradients_bitwise(mode, tmp_path):
    source = save_model(tmp_path / "source", llama_config())
    run_ranks(2, same_gradients, source, 2, 0.0, {"activation_checkpointing": mode})


class CountOps(TorchDispatchMode):
    """Operations that are computed; one whose result was kept never gets here."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


def test_selective_recomputes_every_second_product_and_no_attention(tmp_path):
    source = save_model(tmp_path / "source", llama_config())
    counts = {}
    for mode in ("none", "selective", "full"):
        model = build_on_meta(source, "documents", torch.float32)
        checkpoint_activations(model, mode)
        materialize(model, CPU)
        load_weights(model, source)
        loss = SummedLoss(model)(collate([as_sample(packed_rows(1)[0])], CPU))
        with CountOps() as seen:
            loss.backward()
        counts[mode] = (
            seen.calls[torch.ops.aten.mm.default],
            seen.calls[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default],
        )
    layers, documents = 3, len(packed_rows(1)[0]["lengths"])
    assert counts["full"][1] - counts["none"][1] == layers * documents
    assert counts["selective"][1] == counts["none"][1]
    recomputed = {mode: counts[mode][0] - counts["none"][0] for mode in ("selective", "full")}
    # Seven products in a layer: q, k, v, o, gate, up and down. The result of the last is needed by none.
    assert recomputed == {"full": 6 * layers, "selective": 3 * layers}


@pytest.mark.slow
def test_compiled_layers_give_the_same_gradients(tmp_path):
    source = save_model(tmp_path / "source", llama_config(num_hidden_layers=2))
    # Batches of three lengths, so that code for any length is compiled too.
    run_ranks(1, same_gradients, source, 3, 1e-5, {"compile": True})


def test_compiling_for_a_cpu_without_a_compiler_is_refused(tmp_path, monkeypatch):
    from training.compilation import compile_layers

    monkeypatch.setattr("training.compilation.shutil.which", lambda name: None)
    model = build_on_meta(save_model(tmp_path / "source", llama_config()), "auto", torch.float32)
    with pytest.raises(UserError, match="no C\\+\\+ compiler: install one"):
        compile_layers(model, CPU)


def test_float8_without_the_gpu_for_it_is_refused(tmp_path):
    model = build_on_meta(save_model(tmp_path / "source", llama_config()), "auto", torch.float32)
    with pytest.raises(UserError, match="a cpu device has no float8 matrix products"):
        float8.swap_linears(model, "tensorwise", CPU)


def test_float8_computes_the_layers_and_not_the_head(tmp_path):
    """In torchao's emulation, which runs anywhere; the kernels themselves need a GPU."""
    torchao = pytest.importorskip("torchao.float8", reason="torchao is not installed: pip install .[float8]")
    source = save_model(tmp_path / "source", llama_config(tie_word_embeddings=False))
    losses = {}
    for swapped in (False, True):
        model = build_on_meta(source, "auto", torch.float32)
        if swapped:
            float8.convert(model, torchao.Float8LinearConfig(emulate=True))
        materialize(model, CPU)
        load_weights(model, source)
        kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        loss = SummedLoss(model)(collate([as_sample(packed_rows(1)[0])], CPU))
        loss.backward()
        losses[swapped] = loss.item()
        assert model.model.layers[0].mlp.up_proj.weight.grad is not None
    assert kinds["model.layers.0.mlp.up_proj"] == "Float8Linear" and kinds["lm_head"] == "Linear"
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
