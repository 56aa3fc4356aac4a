"""Attention by documents against each document alone, and against transformers' own masks."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import GPT2Config, LlamaConfig, MistralConfig

from training.attention import choose_attention, document_attention
from training.errors import UserError


def bounds(*lengths):
    """Document bounds and the longest length, as the model's keyword arguments."""
    edges = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return {"cu_seq_lens_q": edges, "max_length_q": max(lengths)}


def tensors(heads, key_heads, tokens=30, samples=2):
    generator = torch.Generator().manual_seed(0)
    make = lambda n: torch.randn(samples, n, tokens, 8, dtype=torch.float64, generator=generator)  # noqa: E731
    return make(heads), make(key_heads), make(key_heads)


@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_equals_a_mask_over_the_whole_sample(window, key_heads):
    query, key, value = tensors(4, key_heads)
    found, _ = document_attention(
        torch.nn.Identity(), query, key, value, None, sliding_window=window, **bounds(12, 1, 17, 30)
    )
    position = torch.arange(30)
    distance = position[:, None] - position[None, :]
    visible = (distance >= 0) & (distance < (window or 30))
    document = torch.tensor([[0] * 12 + [1] + [2] * 17, [0] * 30])
    mask = visible & (document[:, :, None] == document[:, None, :])
    repeat = 4 // key_heads
    expected = scaled_dot_product_attention(
        query, key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1), attn_mask=mask[:, None]
    )
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-12)


def test_documents_cannot_see_each_other():
    query, key, value = tensors(4, 4, samples=1)
    value.requires_grad_()
    output, _ = document_attention(torch.nn.Identity(), query, key, value, None, **bounds(10, 20))
    output[0, 10:].sum().backward()
    assert value.grad is not None
    assert value.grad[0, :, :10].abs().max() == 0
    assert value.grad[0, :, 10:].abs().min() > 0


@pytest.mark.parametrize("extra", [{"softcap": 50.0}, {"position_bias": torch.zeros(1)}])
def test_forms_that_it_lacks_are_refused(extra):
    query, key, value = tensors(4, 4, samples=1)
    with pytest.raises(ValueError, match="use eager"):
        document_attention(torch.nn.Identity(), query, key, value, None, **bounds(30), **extra)


def test_auto_takes_documents_where_they_fit():
    from transformers import Gemma2Config, Llama4TextConfig

    assert choose_attention("auto", LlamaConfig()) == "documents"
    assert choose_attention("auto", GPT2Config()) == "documents"
    assert choose_attention("auto", MistralConfig()) == "documents"
    assert choose_attention("auto", Gemma2Config()) is None, "soft-capped scores need eager"
    assert choose_attention("auto", Llama4TextConfig()) is None, "chunks stand in the mask"
    assert choose_attention("sdpa", LlamaConfig()) == "sdpa"


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("training.attention.find_spec", lambda name: None)
    with pytest.raises(UserError, match="flash-attn is not installed: install it"):
        choose_attention("flash_attention_2", LlamaConfig())


def test_a_mask_beyond_documents_is_refused():
    query, key, value = tensors(4, 4, samples=1)
    with pytest.raises(UserError, match=r"set model\.attention to sdpa"):
        document_attention(torch.nn.Identity(), query, key, value, torch.ones(1), **bounds(30))


def test_cuda_takes_all_documents_in_one_call():
    """With fake tensors: the shapes and arguments of the call are checked, and nothing is computed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        query = torch.empty(2, 8, 48, 64, device="cuda", dtype=torch.bfloat16)
        key = torch.empty(2, 4, 48, 64, device="cuda", dtype=torch.bfloat16)
        edges = torch.empty(5, device="cuda", dtype=torch.int32)
        output, _ = document_attention(
            torch.nn.Identity(), query, key, key, None, sliding_window=16, cu_seq_lens_q=edges, max_length_q=20
        )
        assert output.shape == (2, 48, 8, 64) and output.device.type == "cuda"
