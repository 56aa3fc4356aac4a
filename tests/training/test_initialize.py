"""New weights: transformers' distributions, and the same values whatever the ranks."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.doubles.architectures import CONFIGS
from tests.runs import llama_config, run_ranks
from training import initialize
from training import model as engine
from training.activation import checkpoint_activations
from training.config import ParallelConfig
from training.errors import UserError
from training.initialize import draw_blocks, init_weights
from training.sharding import make_mesh, shard_model

CPU = torch.device("cpu")


def new_model(folder, seed=7):
    model = engine.build_on_meta(folder, "auto", torch.float32)
    engine.materialize(model, CPU)
    init_weights(model, seed)
    return model


@pytest.fixture
def folder_of(tmp_path):
    """A folder with the config alone, of a model that is wide enough to tell distributions apart."""

    def make(config, **changes):
        config = type(config).from_dict({**config.to_dict(), **changes})
        config.save_pretrained(tmp_path / "source")
        return tmp_path / "source"

    return make


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_has_the_distribution_that_transformers_gives_it(name, folder_of):
    folder = folder_of(CONFIGS[name], vocab_size=500)
    ours = new_model(folder)
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(ours.config).state_dict()
    num_drawn = 0
    for key, value in ours.state_dict().items():
        expected = theirs[key]
        if expected.unique().numel() < 3:  # ones or zeros
            assert torch.equal(value, expected), key
            continue
        num_drawn += 1
        # The padding token's row is zero on both sides.
        assert torch.equal(value == 0, expected == 0), key
        drawn = value[value != 0]
        std = expected[expected != 0].std()
        # Four standard errors of either side's estimate.
        error = 4 / (2 * drawn.numel()) ** 0.5
        assert drawn.std().item() == pytest.approx(std.item(), rel=2 * error), key
        assert abs(drawn.mean()) < 4 * std / drawn.numel() ** 0.5, key
    assert num_drawn >= 8


def test_residual_projections_of_gpt2_are_scaled(folder_of):
    model = new_model(folder_of(CONFIGS["gpt2"]))
    attention = model.transformer.h[0].attn
    assert attention.c_proj.weight.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.1)
    assert attention.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_weights_are_independent_of_each_other_and_of_other_seeds(folder_of):
    folder = folder_of(llama_config())
    one, same, other = new_model(folder, 1), new_model(folder, 1), new_model(folder, 2)
    layers = one.model.layers
    first, second = (layer.self_attn.q_proj.weight.flatten() for layer in layers[:2])
    assert torch.equal(first, same.model.layers[0].self_attn.q_proj.weight.flatten())
    for unlike in (
        second,
        layers[0].self_attn.o_proj.weight.flatten(),
        other.model.layers[0].self_attn.q_proj.weight,
    ):
        assert abs(np.corrcoef(first.detach(), unlike.flatten().detach())[0, 1]) < 0.15


def save_sharded(rank, folder, output, strategy, group):
    initialize._BLOCK = 1000  # several blocks in a weight, that end within rows and within shards
    model = engine.build_on_meta(folder, "auto", torch.float32)
    # The names of wrapped modules are others, and their weights' names are not.
    checkpoint_activations(model, "full")
    world = torch.distributed.get_world_size()
    parallel = ParallelConfig(strategy=strategy, shard_group_size=group)
    shard_model(model, make_mesh(parallel, CPU, world, world), strategy, torch.float32)
    engine.materialize(model, CPU)
    init_weights(model, 7)
    state = {name: value.full_tensor() for name, value in engine.weights(model).items()}
    if rank == 0:
        save_file(state, output)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "gemma3"])
def test_the_values_are_the_same_at_any_number_of_ranks(name, folder_of, tmp_path, monkeypatch):
    monkeypatch.setattr(initialize, "_BLOCK", 1000)
    folder = folder_of(CONFIGS[name], vocab_size=97)
    whole = engine.weights(new_model(folder))
    for world_size, strategy, group in [
        (1, "FULL_SHARD", None),
        (2, "NO_SHARD", None),
        (3, "FULL_SHARD", None),
        (4, "HYBRID_SHARD", 2),
    ]:
        file = tmp_path / f"{world_size}.safetensors"
        run_ranks(world_size, save_sharded, folder, file, strategy, group)
        found = load_file(file)
        assert set(found) == set(whole)
        assert all(torch.equal(found[key], value) for key, value in whole.items())


def test_a_part_is_drawn_as_in_the_whole():
    def draw(block, generator):
        block.normal_(generator=generator)

    whole = torch.empty(3_000_000)
    draw_blocks(whole, "1 weight", draw)
    blocks = whole.split(initialize._BLOCK)
    assert len(blocks) == 3
    for block in blocks:
        assert abs(block.mean()) < 5 / len(block) ** 0.5
        assert block.std().item() == pytest.approx(1, abs=0.01)
    assert not torch.equal(blocks[0][:100], blocks[1][:100])
    again = torch.empty(3_000_000, dtype=torch.float64)
    draw_blocks(again, "1 weight", draw)
    assert torch.equal(again.float(), whole)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda self, module: None, r"sets no first value for \S+weight"),
        (
            lambda self, module: [p.bernoulli_() for p in module.parameters(recurse=False)],
            "draws by aten.bernoulli_",
        ),
        (
            lambda self, module: [p.copy_(torch.randn(p.shape)) for p in module.parameters(False)],
            "draws by aten.randn",
        ),
    ],
)
def test_an_architecture_whose_rule_cannot_be_followed(rule, says, folder_of, monkeypatch):
    model = engine.build_on_meta(folder_of(llama_config()), "auto", torch.float32)
    engine.materialize(model, CPU)
    monkeypatch.setattr(type(model), "_init_weights", rule)
    with pytest.raises(UserError, match=f"model.init is random, but .* LlamaForCausalLM {says}.* to pretrained"):
        init_weights(model, 1)
