"""Meta build, sliced load, sharding and export, over architectures, against plain transformers."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.doubles.architectures import CONFIGS
from tests.runs import llama_config, run_ranks, save_model
from training import model as engine
from training.activation import checkpoint_activations
from training.config import ParallelConfig
from training.data import PackedSample, collate
from training.errors import UserError
from training.head import SummedLoss
from training.isolation import check_isolation
from training.sharding import make_mesh, shard_model

CPU = torch.device("cpu")


def packed_sample():
    rng = np.random.default_rng(3)
    ids, labels = rng.integers(1, 96, (2, 32), dtype=np.int32)
    labels[::3] = -100
    return PackedSample(ids, labels, np.array([20, 12], dtype=np.int32))


def packed_batch():
    return collate([packed_sample()], CPU)


def build(folder, strategy="FULL_SHARD", checkpointing="none"):
    model = engine.build_on_meta(folder, "auto", torch.float64)
    checkpoint_activations(model, checkpointing)
    world = torch.distributed.get_world_size()
    shard_model(model, make_mesh(ParallelConfig(strategy=strategy), CPU, world, world), strategy, torch.float64)
    engine.materialize(model, CPU)
    engine.load_weights(model, folder)
    return model


def loss_of_documents_alone(model, sample):
    """The same loss with each document in a forward pass of its own, so that nothing has to be masked."""
    total, begin = torch.zeros((), dtype=torch.float64), 0
    for length in sample.lengths:
        part = slice(begin, begin + length)
        logits = model(input_ids=torch.from_numpy(sample.input_ids[part]).long()[None]).logits[0]
        labels = torch.from_numpy(sample.labels[part]).long()
        total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        begin += length
    return total


def check_architecture(rank, folder, output):
    model = build(folder)
    check_isolation(model, CPU)
    # Eager attention, which Gemma 2 needs, has its softmax in fp32 whatever the dtype; Gemma's norms are too.
    tolerance = 1e-10
    if model.config.model_type.startswith("gemma"):
        tolerance = 1e-4 if model.config._attn_implementation == "eager" else 1e-6
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).train()
    loss, expected = SummedLoss(model)(packed_batch()), loss_of_documents_alone(plain, packed_sample())
    loss.backward()
    expected.backward()
    assert (loss - expected).abs() < tolerance, (loss, expected)
    gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    for name, parameter in plain.named_parameters():
        # Both ranks saw the same batch, and gradients are sums over ranks.
        assert torch.allclose(gradients[name], 2 * parameter.grad, atol=tolerance), name
    if rank == 0:
        output.mkdir()
    torch.distributed.barrier()
    engine.export_weights(model, output, torch.float64)
    if rank == 0:
        engine.copy_companions(folder, output, torch.float64)


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_gradients_and_export_equal_plain_transformers(name, tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS[name])
    # Brackets, because torch looks for files by a glob.
    output = tmp_path / "exp[or]ted*"
    run_ranks(2, check_architecture, folder, output)
    exported = AutoModelForCausalLM.from_pretrained(output)
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert exported.dtype == torch.float64
    for (key, value), (other, expected) in zip(
        exported.state_dict().items(), source.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(value, expected), key


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_masks_keep_documents_apart_too(attention, tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["llama"])
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)
    check_isolation(model, CPU)
    plain = loss_of_documents_alone(model, packed_sample())
    assert SummedLoss(model)(packed_batch()).item() == pytest.approx(plain.item(), rel=1e-6)


def test_an_architecture_whose_documents_would_mix_is_refused(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["opt"])
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float64)
    with pytest.raises(UserError, match=r"set model\.attention to documents"):
        check_isolation(model, CPU)


def test_base_model_files_without_prefix_load(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["gpt2"])
    file = folder / "model.safetensors"
    save_file({k.removeprefix("transformer."): v for k, v in load_file(file).items()}, file)
    model = engine.build_on_meta(folder, "auto", torch.float32)
    engine.materialize(model, CPU)
    engine.load_weights(model, folder)
    expected = load_file(file)["h.0.attn.c_attn.weight"]
    assert torch.equal(model.transformer.h[0].attn.c_attn.weight, expected)


def test_weights_of_another_architecture_are_refused_by_name(tmp_path):
    folder = save_model(tmp_path / "source", llama_config(num_hidden_layers=2))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    model = engine.build_on_meta(folder, "auto", torch.float32)
    engine.materialize(model, CPU)
    with pytest.raises(UserError, match=r"lacks 9 weights of LlamaForCausalLM, model\.layers\.2"):
        engine.load_weights(model, folder)


def test_large_exports_are_split_into_numbered_files(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_MAX_FILE_BYTES", 20_000)
    folder = save_model(tmp_path / "source", llama_config())
    model = engine.build_on_meta(folder, "auto", torch.float32)
    engine.materialize(model, CPU)
    engine.load_weights(model, folder)
    output = tmp_path / "exported"
    output.mkdir()
    engine.export_weights(model, output, torch.float32)
    engine.copy_companions(folder, output, torch.float32)
    files = sorted(path.name for path in output.glob("*.safetensors"))
    assert len(files) > 2 and files[0].startswith("model-00001-of-")
    assert not (output / "shards").exists()
    exported = AutoModelForCausalLM.from_pretrained(output)
    assert torch.equal(exported.lm_head.weight, AutoModelForCausalLM.from_pretrained(folder).lm_head.weight)


def test_an_export_that_lacks_weights_is_noticed(tmp_path, monkeypatch):
    folder = save_model(tmp_path / "source", llama_config())
    model = engine.build_on_meta(folder, "auto", torch.float32)
    engine.materialize(model, CPU)
    engine.load_weights(model, folder)
    (tmp_path / "exported").mkdir()
    monkeypatch.setattr(engine, "consolidate_safetensors_files_on_every_rank", lambda *args, **kwargs: None)
    with pytest.raises(RuntimeError, match=r"lacks \d+ weights"):
        engine.export_weights(model, tmp_path / "exported", torch.float32)


def resident(rank, folder, bound):
    import gc
    import resource

    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = build(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shard = sum(p.to_local().numel() * 8 for p in model.parameters())
    assert peak - before < bound * shard, (
        f"grew by {(peak - before) / 2**20:.0f} MiB, shard {shard / 2**20:.0f} MiB"
    )


def test_no_rank_holds_more_than_its_shard_while_loading(tmp_path):
    # 150 M parameters: 600 MB in the file, 1.2 GB whole in fp64, 300 MB a shard of four.
    config = llama_config(hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, vocab_size=8192)
    folder = save_model(tmp_path / "source", config)
    run_ranks(4, resident, folder, 2.0)
