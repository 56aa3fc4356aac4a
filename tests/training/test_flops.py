"""Model FLOPs, against closed forms and against what torch counts while a model runs."""

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, inject_adapter_in_model
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AriaTextConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from training.config import ParallelConfig
from training.flops import ModelFlops
from training.sharding import make_mesh, shard_model

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # Not hidden_size / heads, so that the one cannot stand for the other.
    "head_dim": 16,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES),
    "gemma2": Gemma2Config(**SIZES),
    "gemma3": Gemma3TextConfig(**SIZES),
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=64),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4),
    "gpt-oss": GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "gemma4": Gemma4TextConfig(
        **SIZES,
        hidden_size_per_layer_input=0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        per_layer_config={2: {"head_dim": 24}},
    ),
    "deepseek-v3": DeepseekV3Config(
        **{key: value for key, value in SIZES.items() if key not in ("num_key_value_heads", "head_dim")},
        num_key_value_heads=4,
        **EXPERTS,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=12,
        qk_rope_head_dim=4,
        v_head_dim=20,
    ),
}
LENGTH, NUM_SUPERVISED = 40, 7


def build(config, device="meta"):
    with torch.device(device):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )


def counted(model) -> float:
    """What torch counts for a forward and a backward pass over one document."""
    tokens = torch.arange(LENGTH)[None] % 96
    positions = torch.arange(NUM_SUPERVISED)
    # Gradients of non-floating inputs do not exist; those of the embeddings make the first layer like the others.
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: output.requires_grad_())
    with FlopCounterMode(display=False) as counter:
        logits = model(input_ids=tokens, logits_to_keep=positions, use_cache=False).logits
        logits.float().sum().backward()
    return counter.get_total_flops()


def of_one_document(flops: ModelFlops) -> float:
    return flops.of_batch(LENGTH, NUM_SUPERVISED, LENGTH**2)


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_what_torch_counts(name):
    torch.manual_seed(0)
    flops = ModelFlops.of(build(CONFIGS[name]))
    # The rest is the rotary embedding's frequencies times positions, a matrix product too.
    assert of_one_document(flops) == pytest.approx(counted(build(CONFIGS[name], "cpu")), rel=2e-3)


def test_frozen_weights_need_no_gradient():
    model = build(CONFIGS["llama"], "cpu")
    model.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj", "down_proj"]), model)
    assert of_one_document(ModelFlops.of(model)) == pytest.approx(counted(model), rel=2e-3)


def test_closed_form_of_a_llama():
    hidden, inner, heads, size = 32, 48, 4, 16
    attention = hidden * size * (heads + 2 + 2 + heads)
    flops = ModelFlops.of(build(CONFIGS["llama"]))
    assert flops == ModelFlops(
        per_token=6 * 3 * (attention + 3 * hidden * inner),
        per_supervised=6 * hidden * 96,
        per_squared_length=12 * 3 * heads * size,
    )
    assert flops.of_batch(100, 30, 100 * 20) == (
        100 * flops.per_token + 30 * flops.per_supervised + 2000 * flops.per_squared_length
    )


@pytest.mark.parametrize("name", ["llama-tied", "mixtral"])
def test_shards_count_as_the_whole(name):
    model = build(CONFIGS[name])
    whole = ModelFlops.of(model)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = make_mesh(ParallelConfig(), torch.device("cpu"), world_size=2, local_size=2)
        shard_model(model, mesh, "FULL_SHARD", torch.float32)
        assert isinstance(next(model.parameters()), DTensor)
        assert ModelFlops.of(model) == whole
    finally:
        dist.destroy_process_group()


def test_layers_with_linear_attention_have_no_scores():
    config = Qwen3NextConfig(
        **SIZES,
        **EXPERTS,
        num_experts=4,
        shared_expert_intermediate_size=24,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    )
    assert ModelFlops.of(build(config)).per_squared_length == 12 * 4 * 16


def test_unknown_where_the_config_does_not_tell():
    assert ModelFlops.of(build(MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2))) is None
    # It has experts, and other names for how many.
    assert ModelFlops.of(build(AriaTextConfig(**SIZES))) is None
