"""Small models that are made in a moment and need no download."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(chat_template=CHAT_TEMPLATE):
    """A fast tokenizer that knows words of the letters a to z, whole."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<|end|>", "<|user|>", "<|system|>", "<|assistant|>", *"abcdefghijklmnopqrstuvwxyz"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|system|>", "<|assistant|>"]})
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny_model(folder, *, tokenizer=None, max_position_embeddings=64, **save_options):
    """A random Llama of a few thousand parameters, with a tokenizer, as save_pretrained writes it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = tokenizer or tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, **save_options)
    tokenizer.save_pretrained(folder)
    return folder
