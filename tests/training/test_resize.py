"""Models whose tokenizer has more tokens than their files have embeddings for."""

import contextlib
import gc
import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PhiConfig

from tests.doubles.architectures import CONFIGS
from tests.runs import llama_config, run_ranks, save_model
from training import model as engine
from training.config import ParallelConfig
from training.errors import UserError
from training.sharding import make_mesh, shard_model

CPU = torch.device("cpu")
BEFORE, AFTER = 96, 103
CASES = {
    **{name: CONFIGS[name] for name in ("llama", "llama-tied", "gpt2", "gemma3")},
    # Its head has a bias.
    "phi": PhiConfig(
        vocab_size=BEFORE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    ),
}


def build_resized(folder, strategy, group=None):
    model = engine.build_on_meta(folder, "auto", torch.float64, num_rows=AFTER)
    world = torch.distributed.get_world_size()
    parallel = ParallelConfig(strategy=strategy, shard_group_size=group)
    shard_model(model, make_mesh(parallel, CPU, world, world), strategy, torch.float64)
    engine.materialize(model, CPU)
    engine.load_weights(model, folder)
    return model


def export_resized(rank, folder, output, strategy, group):
    model = build_resized(folder, strategy, group)
    if rank == 0:
        output.mkdir()
    torch.distributed.barrier()
    engine.export_weights(model, output, torch.float64)
    if rank == 0:
        engine.copy_companions(folder, output, torch.float64, AFTER)


def source_of(name, folder):
    source = save_model(folder, CASES[name])
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64)
    if name == "phi":
        torch.nn.init.normal_(model.lm_head.bias)
        model.to(torch.float32).save_pretrained(source)
    return source


def check_resized(folder, source):
    """What was exported is the source with rows added, each the mean of the old."""
    before = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64).eval()
    after = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert after.config.get_text_config().vocab_size == AFTER
    old, new = before.state_dict(), after.state_dict()
    assert list(old) == list(new)
    num_grown = 0
    for name, value in old.items():
        if new[name].shape == value.shape:
            assert torch.equal(new[name], value), name
        else:
            num_grown += 1
            assert new[name].shape == (AFTER, *value.shape[1:])
            assert torch.equal(new[name][:BEFORE], value), name
            assert torch.allclose(new[name][BEFORE:], value.mean(0), rtol=1e-13), name
    assert num_grown == (3 if "lm_head.bias" in old else 2)
    ids = torch.arange(1, 17)[None]
    with torch.no_grad():
        assert torch.allclose(after(ids).logits[..., :BEFORE], before(ids).logits, atol=1e-12)
        assert after(torch.tensor([[AFTER - 1]])).logits.shape == (1, 1, AFTER)


@pytest.mark.parametrize("name", CASES)
def test_new_rows_are_the_mean_and_the_export_loads(name, tmp_path):
    source = source_of(name, tmp_path / "source")
    # 103 rows over three ranks: 35, 35 and 33, of which the last has all the new ones.
    run_ranks(3, export_resized, source, tmp_path / "exported", "FULL_SHARD", None)
    check_resized(tmp_path / "exported", source)


@pytest.mark.parametrize(
    ("world_size", "strategy", "group"),
    [(1, "FULL_SHARD", None), (2, "NO_SHARD", None), (4, "HYBRID_SHARD", 2)],
)
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_every_strategy_and_world_size(name, world_size, strategy, group, tmp_path):
    source = source_of(name, tmp_path / "source")
    run_ranks(world_size, export_resized, source, tmp_path / "exported", strategy, group)
    check_resized(tmp_path / "exported", source)


def compare_in_small_parts(rank, folder):
    from training import resize

    whole = {
        name: value.full_tensor() for name, value in engine.weights(build_resized(folder, "FULL_SHARD")).items()
    }
    resize._BYTES_AT_ONCE = 32 * 8 * 5
    for name, value in engine.weights(build_resized(folder, "FULL_SHARD")).items():
        assert torch.allclose(value.full_tensor(), whole[name], rtol=1e-13), name


def test_rows_are_read_in_parts(tmp_path):
    run_ranks(2, compare_in_small_parts, source_of("llama", tmp_path / "source"))


def test_a_rank_with_new_rows_only(tmp_path):
    source = save_model(tmp_path / "source", llama_config(vocab_size=40))
    # 103 rows over three ranks: the last begins at 70, beyond the 40 that there are.
    run_ranks(3, export_resized, source, tmp_path / "exported", "FULL_SHARD", None)
    saved = load_file(source / "model.safetensors")["lm_head.weight"].double()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").lm_head.weight
    assert torch.allclose(found[40:], saved.mean(0).expand(63, -1), rtol=1e-13)


def test_files_with_fewer_rows_than_their_config_says_are_no_greater_vocabulary(tmp_path):
    source = save_model(tmp_path / "source", llama_config())
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": AFTER}))
    model = engine.build_on_meta(source, "auto", torch.float64)
    engine.materialize(model, CPU)
    with pytest.raises(UserError, match=r"embed_tokens.weight of the shape \[96, 32\], but .* \[103, 32\]"):
        engine.load_weights(model, source)


def anonymous_mib():
    """Memory of this process that is its own; pages of mapped files are the system's to take back."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 2**10


@contextlib.contextmanager
def peak_of(seen):
    done = threading.Event()

    def watch():
        while not done.wait(0.002):
            seen.append(anonymous_mib())

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    done.set()
    thread.join()


def resident(rank, folder):
    gc.collect()
    seen = [anonymous_mib()]
    model = engine.build_on_meta(folder, "auto", torch.float32, num_rows=120_001)
    world = torch.distributed.get_world_size()
    shard_model(model, make_mesh(ParallelConfig(), CPU, world, world), "FULL_SHARD", torch.float32)
    with peak_of(seen):
        engine.materialize(model, CPU)
        engine.load_weights(model, folder)
    assert len(seen) > 20
    grown = max(seen) - seen[0]
    shard = sum(p.to_local().numel() * 4 for p in model.parameters()) / 2**20
    assert shard < grown < shard + 64, f"grew by {grown:.0f} MiB, shard {shard:.0f} MiB"


def test_loading_takes_a_shard_and_little_more(tmp_path):
    # 120 000 rows of 1024 twice: 980 MB in fp32.
    config = llama_config(hidden_size=1024, intermediate_size=256, num_hidden_layers=1, vocab_size=120_000)
    run_ranks(4, resident, save_model(tmp_path / "source", config))
