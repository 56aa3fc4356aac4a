"""One small model of each architecture that is tested."""

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": LlamaConfig(**{**SIZES, "sliding_window": None}),
    "llama-tied": LlamaConfig(**{**SIZES, "sliding_window": None, "tie_word_embeddings": True}),
    "llama3-rope": LlamaConfig(
        **{**SIZES, "sliding_window": None},
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "mistral": MistralConfig(**SIZES),
    "gemma2": Gemma2Config(**SIZES),
    "gemma3": Gemma3TextConfig(**SIZES),
    "phi3": Phi3Config(**SIZES),
    "gpt2": GPT2Config(
        vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    ),
    "opt": OPTConfig(
        vocab_size=96,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        dropout=0.0,
    ),
}
