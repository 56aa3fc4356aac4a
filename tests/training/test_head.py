"""The chunked loss against the naive one, over architectures, and what it never holds."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig, PhiConfig

from tests.runs import VOCABULARY, as_sample, llama_config, packed_rows, run_ranks, save_model
from training import head
from training.build import build_model
from training.config import RunConfig
from training.data import IGNORE, PackedSample, collate
from training.head import SummedLoss, model_inputs
from training.model import load_weights

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

CONFIGS = {
    "plain": llama_config(num_hidden_layers=2, tie_word_embeddings=True),
    "bias in the head": PhiConfig(**SIZES),
    "capped logits": Gemma2Config(**SIZES, final_logit_softcapping=3.0),
    "scaled logits": CohereConfig(**SIZES, logit_scale=0.25),
    "divided logits": GraniteConfig(**SIZES, logits_scaling=4.0),
}


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(head, "chunk_size", lambda vocabulary: 5)


def build(config, dtype):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def batch_of(num_samples=2):
    return collate([as_sample(row) for row in packed_rows(num_samples)], CPU)


def naive(model, batch):
    logits = model(**model_inputs(batch)).logits.flatten(0, 1)
    return cross_entropy(logits[batch.supervised], batch.targets, reduction="sum")


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_equal_the_naive_form(name, small_chunks):
    model, batch = build(CONFIGS[name], torch.float64), batch_of()
    loss = SummedLoss(model)
    expected = naive(model, batch)
    (expected / 7).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    for _ in range(2):  # the first pass finds out what the architecture does to its logits
        model.zero_grad()
        found = loss(batch)
        (found / 7).backward()
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)
        for n, parameter in model.named_parameters():
            assert torch.allclose(parameter.grad, gradients[n], rtol=1e-9, atol=1e-12), n
    assert loss._chunked, "what was tested is the fallback"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("is_known", [True, False])
def test_the_loss_of_each_token_equals_the_naive_form(name, is_known, small_chunks, monkeypatch):
    model, batch = build(CONFIGS[name], torch.float64), batch_of()
    if not is_known:
        monkeypatch.setattr(head, "_postprocessing", lambda config: lambda logits: 2 * logits)
    loss = SummedLoss(model)
    with torch.no_grad():
        logits = model(**model_inputs(batch)).logits.flatten(0, 1)
        expected = cross_entropy(logits[batch.supervised], batch.targets, reduction="none")
    for _ in range(2):
        found = loss.of_tokens(batch)
        assert torch.allclose(found, expected, rtol=1e-12) and not found.requires_grad
    assert loss._chunked == is_known


def test_fp32_is_within_rounding_and_bf16_gradients_are_summed_in_fp32(small_chunks):
    exact = build(CONFIGS["plain"], torch.float64)
    naive(exact, batch_of()).backward()
    expected = exact.lm_head.weight.grad
    errors = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = build(CONFIGS["plain"], torch.float64).to(dtype)
        SummedLoss(model)(batch_of()).backward()
        errors[dtype] = ((model.lm_head.weight.grad - expected).norm() / expected.norm()).item()
    assert errors[torch.float32] < 2e-6
    plain = build(CONFIGS["plain"], torch.float64).to(torch.bfloat16)
    naive(plain, batch_of()).backward()
    of_naive = ((plain.lm_head.weight.grad - expected).norm() / expected.norm()).item()
    assert errors[torch.bfloat16] < 1.1 * of_naive


def test_an_unknown_treatment_of_logits_is_left_to_the_model(small_chunks, monkeypatch):
    model = build(CONFIGS["capped logits"], torch.float64)
    monkeypatch.setattr(head, "_postprocessing", lambda config: None)
    loss = SummedLoss(model)
    assert loss(batch_of()).item() == pytest.approx(naive(model, batch_of()).item(), rel=1e-12)
    monkeypatch.setattr(head, "_postprocessing", lambda config: lambda logits: 2 * logits)
    loss = SummedLoss(model)
    assert loss(batch_of()).item() == pytest.approx(naive(model, batch_of()).item(), rel=1e-12)
    assert not loss._chunked


def one_rank_of_bad_numbers(rank, source):
    """NaN in one rank's first batch only; the ranks have to make the same passes all the same."""
    model = build_model(
        RunConfig.model_validate({"model": {"name": "m"}, "data": {"train": "d"}}), source, CPU, torch.float32
    )
    load_weights(model, source)
    rows = model.model.embed_tokens.weight.detach().to_local()
    if rank == 0:
        rows[1] = math.nan  # a token that only rank 1 has
    ids = np.array([2, 3, 4, 5] if rank == 0 else [1, 3, 4, 5], np.int32)
    labels = np.full(4, IGNORE, np.int32) if rank == 0 else ids
    loss = SummedLoss(model)
    for _ in range(2):
        found = loss(collate([PackedSample(ids, labels, np.array([4], np.int32))], CPU))
        found.backward()
    assert loss._chunked and math.isnan(found.item()) == (rank == 1)


def test_ranks_agree_on_the_form_whatever_their_numbers(tmp_path):
    config = GraniteConfig(**SIZES, logits_scaling=4.0, tie_word_embeddings=False)
    run_ranks(2, one_rank_of_bad_numbers, save_model(tmp_path / "source", config))


def test_evaluation_makes_no_gradients():
    model, batch = build(CONFIGS["plain"], torch.float32), batch_of(4)
    with torch.no_grad(), CountProducts() as seen:
        SummedLoss(model)(batch)
    in_layers = 2 * 7
    assert seen.count == in_layers + 1, "the head's product, and none for its gradients"


class CountProducts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out)
        return func(*args, **(kwargs or {}))


def test_a_sum_of_many_chunks_in_bf16_is_taken_in_fp32():
    torch.manual_seed(0)
    total = head._Sum(torch.empty(8, 8, dtype=torch.bfloat16))
    exact = torch.zeros(8, 8, dtype=torch.float64)
    for _ in range(300):
        left, right = torch.rand(8, 4).bfloat16(), torch.rand(4, 8).bfloat16()
        total.add_product(left, right)
        exact += left.double() @ right.double()
    # In bf16, of 8 bits, a sum that has grown to 256 times its addends would stand still.
    assert ((total.value.double() - exact).norm() / exact.norm()).item() < 0.004


def test_nothing_supervised_is_a_loss_of_zero_with_gradients_of_zero():
    model = build(CONFIGS["plain"], torch.float32)
    ids = np.arange(6, dtype=np.int32)
    sample = PackedSample(ids, np.full(6, IGNORE, np.int32), np.array([6], np.int32))
    loss = SummedLoss(model)(collate([sample], CPU))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_frozen_heads_and_evaluation_compute_no_gradients():
    model = build(llama_config(tie_word_embeddings=False), torch.float32)
    model.lm_head.requires_grad_(False)
    SummedLoss(model)(batch_of()).backward()
    assert model.lm_head.weight.grad is None and model.model.norm.weight.grad is not None
    with torch.no_grad():
        loss = SummedLoss(model)(batch_of())
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(naive(model, batch_of()).item(), rel=1e-6)


class LargestByVocabulary(TorchDispatchMode):
    """The most rows of anything computed that is as wide as the vocabulary."""

    rows = 0
    views = (torch.ops.aten.t.default, torch.ops.aten.transpose.int)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if (
            func not in self.views
            and torch.is_tensor(output)
            and output.ndim > 1
            and output.shape[-1] == VOCABULARY
        ):
            self.rows = max(self.rows, output.numel() // VOCABULARY)
        return output


def test_no_more_logits_than_a_chunk_exist_at_once(small_chunks):
    model = build(llama_config(tie_word_embeddings=False), torch.float32)
    batch = batch_of(4)
    assert len(batch.targets) > 30
    with LargestByVocabulary() as seen:
        SummedLoss(model)(batch).backward()
    assert seen.rows == 5
    with LargestByVocabulary() as seen:
        naive(model, batch).backward()
    assert seen.rows >= batch.input_ids.numel()


def test_chunks_are_bounded_in_bytes_and_never_narrow():
    assert head.chunk_size(49_152) * 49_152 * 4 <= 2**26
    assert head.chunk_size(256_000) == 256
