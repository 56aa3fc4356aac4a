import pytest
import torch

from training.data import PackedDataset
from training.errors import UserError
from training.measure.heldout import document_losses
from training.measure.load import build_bare, load_model
from training.measure.request import Subject
from training.measure.settings import Settings
from training.measure.sources import HeldoutSource, heldout_sources

pytestmark = pytest.mark.usefixtures("alone")

CPU = torch.device("cpu")


def heldout_loss(model, samples, device, *told):
    documents = document_losses(model, samples, [HeldoutSource("rows", len(samples))], device, *told)
    return documents.nats.sum() / documents.num_supervised.sum(), documents.num_supervised.sum()


def naive_loss(model, rows) -> tuple[float, int]:
    """Every document by itself, token by token, in the formula's own words."""
    total, count = 0.0, 0
    for row in rows:
        start = 0
        for length in row.lengths:
            tokens, labels = row.input_ids[start : start + length], row.labels[start : start + length]
            start += length
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([tokens])).logits[0]
            for position, label in enumerate(labels):
                if label != -100:
                    total -= logits[position].log_softmax(-1)[label].item()
                    count += 1
    return total / count, count


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_equals_each_document_by_itself(tmp_path, make_model, packed_rows, write_rows, attention):
    model = make_model().double()
    model.set_attn_implementation(attention)
    samples = PackedDataset(write_rows(tmp_path / "heldout.arrow", packed_rows))
    loss, count = heldout_loss(model, samples, CPU)
    expected, expected_count = naive_loss(model, packed_rows)
    assert count == expected_count
    # transformers' eager attention takes its softmax in fp32 whatever the dtype.
    assert loss == pytest.approx(expected, abs=1e-6 if attention == "eager" else 1e-12)


def test_loss_is_taken_in_fp32_for_a_bf16_model(tmp_path, make_model, packed_rows, write_rows):
    model = make_model().bfloat16()
    samples = PackedDataset(write_rows(tmp_path / "heldout.arrow", packed_rows))
    loss, _ = heldout_loss(model, samples, CPU)
    # Summed in bf16, which has 8 bits, it would be off in the second digit.
    assert loss == pytest.approx(naive_loss(model.float(), packed_rows)[0], rel=2e-2)
    assert loss != torch.tensor(loss).bfloat16().item()


def test_documents_do_not_see_each_other(tmp_path, make_model, packed_rows, write_rows):
    model = make_model()
    row = packed_rows[0]
    row_only_second = type(row)(row.input_ids, [-100] * 9 + row.labels[9:], row.lengths)
    changed = type(row)([5] * 9 + row.input_ids[9:], row_only_second.labels, row.lengths)
    losses = [
        heldout_loss(model, PackedDataset(write_rows(tmp_path / f"{i}.arrow", [r])), CPU)
        for i, r in enumerate([row_only_second, changed])
    ]
    assert losses[0] == losses[1]


def test_progress_counts_all_samples(tmp_path, make_model, packed_rows, write_rows):
    done = []
    heldout_loss(make_model(), PackedDataset(write_rows(tmp_path / "x.arrow", packed_rows)), CPU, done.append)
    assert done == [1, 2, 3]


def test_nothing_supervised_names_the_fields_to_change(tmp_path, make_model, packed_rows, write_rows):
    samples = PackedDataset(write_rows(tmp_path / "heldout.arrow", packed_rows[2:]))
    with pytest.raises(UserError, match=r"none of the 1 held-out samples.*data\.sequence_length"):
        heldout_loss(make_model(), samples, CPU)


def test_an_architecture_that_mixes_packed_documents_under_a_mask_is_measured_right(
    tmp_path, packed_rows, write_rows
):
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=48,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        init_std=0.3,
    )
    OPTForCausalLM(config).save_pretrained(tmp_path / "opt")
    settings = Settings(CPU, torch.float64, "auto")
    subject = Subject("tuned", tmp_path / "opt", None, "key")
    model = load_model(build_bare(subject, tmp_path, settings), subject, settings, is_sharded=False)
    samples = PackedDataset(write_rows(tmp_path / "heldout.arrow", packed_rows))
    loss, _ = heldout_loss(model, samples, CPU)
    plain = OPTForCausalLM.from_pretrained(tmp_path / "opt", dtype=torch.float64)
    assert loss == pytest.approx(naive_loss(plain, packed_rows)[0], abs=1e-12)


def test_samples_belong_to_their_sources(tmp_path, make_model, packed_rows, write_rows):
    samples = PackedDataset(write_rows(tmp_path / "heldout.arrow", packed_rows))
    facts = {"heldout_sources": [{"name": "a", "num_samples": 1}, {"name": "b", "num_samples": 2}]}
    documents = document_losses(make_model(), samples, heldout_sources(facts, 3), CPU)
    # The third sample, and the document of one token in the second, have nothing to predict.
    assert documents.source.tolist() == [0, 0, 1, 1]
    assert heldout_sources({"source": "qa.jsonl"}, 3) == [HeldoutSource("qa.jsonl", 3)]
