"""Adapters on a sharded model, against peft in one plain process."""

import gc
import json
import os
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

from tests.runs import llama_config, packed_rows, run_ranks, save_model
from training import model as engine
from training.activation import checkpoint_activations
from training.checkpoint import checkpoints
from training.config import LoraConfig, ModelConfig, ParallelConfig, RunConfig, TrainingConfig
from training.data import GlobalOrder
from training.errors import UserError
from training.lora import adapter_weights, add_adapters, init_adapters, name_in_peft
from training.lora_export import export_adapter, export_merged
from training.optim import clip_gradients, learning_rate, make_optimizer
from training.precision import master_dtype
from training.sharding import make_mesh, shard_model
from training.shards import local_rows
from training.trainer import make_plan

# peft asks transformers for something by its former name, and is not told that GPT-2's matrices are transposed.
pytestmark = pytest.mark.filterwarnings("ignore:.*(is_gradient_checkpointing|fan_in_fan_out)")

CPU = torch.device("cpu")
CONFIGS = {
    "llama": llama_config(tie_word_embeddings=False),
    "llama-tied": llama_config(tie_word_embeddings=True),
    # Its linear modules are transposed.
    "gpt2": GPT2Config(
        vocab_size=96,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    # With biases.
    "qwen2": Qwen2Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
}
# Of three ranks, one holds nothing of an A.
LORA = LoraConfig(rank=2, alpha=3.5)
MAX_NORM = 0.01
TRAINING = TrainingConfig(learning_rate=0.01, weight_decay=0.1)
IDS = torch.randint(0, 96, (6, 16), generator=torch.Generator().manual_seed(3))
SEED = 7


def build(folder, lora=LORA, compute=torch.float64, checkpointing="none", seed=SEED):
    """A model with adapters, in the order in which a rank builds it."""
    model = engine.build_on_meta(folder, "sdpa", compute)
    add_adapters(model, lora, master_dtype(compute))
    checkpoint_activations(model, checkpointing)
    world = torch.distributed.get_world_size()
    shard_model(model, make_mesh(ParallelConfig(), CPU, world, world), "FULL_SHARD", compute)
    engine.materialize(model, CPU)
    engine.load_weights(model, folder)
    init_adapters(model, seed)
    return model


def step(model, optimizer, ids):
    """One step on this rank's share of the global batch."""
    logits = model(input_ids=ids).logits[:, :-1]
    loss = F.cross_entropy(logits.flatten(0, 1).to(torch.float64), ids[:, 1:].flatten(), reduction="sum")
    (loss / IDS[:, 1:].numel()).backward()
    clip_gradients(model, MAX_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def share(rank):
    return IDS[rank :: torch.distributed.get_world_size()]


def gathered(tensors):
    return {
        name: t.detach().full_tensor() if isinstance(t, DTensor) else t.detach() for name, t in tensors.items()
    }


def plain_peft(folder, lora, training):
    """peft and torch's plain AdamW in one process: base with its adapters, and optimizer."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    settings = PeftConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, settings).train()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_eps,
        foreach=False,
    )
    return base, optimizer


def plain_step(model, optimizer, loss, max_norm):
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    assert norm > max_norm, "clipping is not exercised"
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


def reference(folder, num_steps):
    """The adapters after some steps in one process, by their names in the model."""
    base, optimizer = plain_peft(folder, LORA, TRAINING)
    init_adapters(base, SEED)
    for _ in range(num_steps):
        # Not with `labels`, of which transformers takes the loss in fp32.
        logits = base(input_ids=IDS).logits[:, :-1]
        plain_step(base, optimizer, F.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten()), MAX_NORM)
    return gathered(adapter_weights(base))


def assert_adapters(model, expected):
    found = gathered(adapter_weights(model))
    assert found.keys() == expected.keys()
    difference = max((found[name] - expected[name]).abs().max().item() for name in expected)
    assert difference < 1e-12, difference


def train_as_reference(rank, folder, checkpointing, expected):
    model = build(folder, checkpointing=checkpointing)
    optimizer = make_optimizer(model, TRAINING)
    for _ in range(5):
        step(model, optimizer, share(rank))
    assert_adapters(model, expected)
    base = gathered(engine.weights(model))
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(base[name], value.to(torch.float64)), name


@pytest.mark.parametrize(("name", "world_size", "checkpointing"), [("llama-tied", 3, "full"), ("gpt2", 2, "none")])
def test_sharded_training_equals_peft_in_one_process(name, world_size, checkpointing, tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS[name])
    expected = reference(folder, num_steps=5)
    start = reference(folder, num_steps=0)
    assert max((expected[name] - start[name]).abs().max() for name in expected) > 0.03, "nothing was learnt"
    run_ranks(world_size, train_as_reference, folder, checkpointing, expected)


def save_halfway(rank, folder, checkpoint):
    model = build(folder)
    optimizer = make_optimizer(model, TRAINING)
    for _ in range(3):
        step(model, optimizer, share(rank))
    state = {"model": engine.trainable_weights(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=checkpoint)


def resume(rank, folder, checkpoint, expected):
    model = build(folder, seed=SEED + 1)
    optimizer = make_optimizer(model, TRAINING)
    state = {"model": engine.trainable_weights(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=checkpoint)
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    for _ in range(2):
        step(model, optimizer, share(rank))
    assert_adapters(model, expected)


def test_a_checkpoint_holds_adapters_only_and_resumes_at_another_world_size(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["llama"])
    run_ranks(2, save_halfway, folder, tmp_path / "checkpoint")
    saved = dcp.FileSystemReader(tmp_path / "checkpoint").read_metadata().state_dict_metadata
    assert any(name.startswith("model.") for name in saved)
    assert [name for name in saved if "lora_" not in name and not name.startswith("optimizer.param_groups")] == []
    run_ranks(3, resume, folder, tmp_path / "checkpoint", reference(folder, num_steps=5))


def keep_first_values(rank, folder, output):
    values = gathered(adapter_weights(build(folder)))
    if rank == 0:
        torch.save(values, output)


def test_first_values_are_the_same_at_any_world_size_and_change_nothing(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["llama"])
    for world_size in (1, 3):
        run_ranks(world_size, keep_first_values, folder, tmp_path / f"{world_size}")
    one, three = torch.load(tmp_path / "1"), torch.load(tmp_path / "3")
    assert all(torch.equal(one[name], three[name]) for name in one)
    drawn = [value for name, value in one.items() if "lora_A" in name]
    assert len({value.sum().item() for value in drawn}) == len(drawn) == 3 * 7
    for value in drawn:
        # Uniform up to 1/√in, as peft draws.
        assert 0.8 < value.abs().max() * value.shape[1] ** 0.5 <= 1
    assert not any(value.any() for name, value in one.items() if "lora_B" in name)


def count_memory(rank, folder):
    model = build(folder, LoraConfig(rank=8), torch.bfloat16)
    assert {p.dtype for p in engine.weights(model).values()} == {torch.bfloat16}
    assert {p.dtype for p in adapter_weights(model).values()} == {torch.float32}
    optimizer = make_optimizer(model, TRAINING)
    for _ in range(2):
        step(model, optimizer, share(rank))
    model(input_ids=share(rank)).logits.float().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    adapters = adapter_weights(model)
    assert gradients.keys() == adapters.keys()
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    assert {id(p) for p in optimizer.state} == {id(p) for p in model.parameters() if p.requires_grad}
    del gradients
    optimizer.zero_grad(set_to_none=True)
    held = held_bytes()
    base = sum(local_rows(value)[0].nbytes for value in engine.weights(model).values())
    trained = sum(local_rows(value)[0].nbytes for value in adapters.values())
    assert held[torch.bfloat16] == base
    # The adapters with two moments; beside them only rotary frequencies and the counts of steps.
    assert 0 <= held[torch.float32] - 3 * trained < 1024 < base, (held, base, trained)


def held_bytes():
    """Bytes of all tensors that this process holds, by dtype; each storage once."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and not isinstance(t, DTensor)]
    # Those that were there before the model, such as this module's, are of int64.
    storages = {t.untyped_storage().data_ptr(): (t.dtype, t.untyped_storage().nbytes()) for t in tensors}
    held = dict.fromkeys((torch.bfloat16, torch.float32), 0)
    for dtype, size in storages.values():
        held[dtype] = held.get(dtype, 0) + size
    return held


def test_gradients_moments_and_full_precision_exist_for_adapters_only(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["llama"])
    run_ranks(2, count_memory, folder)


class Traffic(TorchDispatchMode):
    """Bytes that collectives take in (reduce-scatter) or give out (all-gather)."""

    def __init__(self):
        super().__init__()
        self.gathered = self.reduced = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__
        if "allgather" in name or "all_gather_into" in name:
            self.gathered += args[0].nbytes
        elif "reduce_scatter" in name:
            self.reduced += args[1].nbytes
        elif "c10d" in str(func) and "wait" not in name:
            raise AssertionError(f"{func} was not expected")
        return func(*args, **(kwargs or {}))


def count_traffic(rank, folder):
    model = build(folder, LoraConfig(rank=8), torch.bfloat16)
    optimizer = make_optimizer(model, TRAINING)
    step(model, optimizer, share(rank))
    with Traffic() as traffic:
        model(input_ids=share(rank)).logits.float().sum().backward()
    layers = sum(value.numel() for name, value in engine.weights(model).items() if "layers." in name)
    rest = sum(value.numel() for name, value in engine.weights(model).items() if "layers." not in name)
    adapters = sum(value.numel() for value in adapter_weights(model).values())
    # In bf16: the layers before the forward and before the backward pass; norm, embedding and head once.
    assert traffic.gathered == 2 * (2 * (layers + adapters) + rest), (traffic.gathered, layers, adapters, rest)
    assert traffic.reduced == 4 * adapters, traffic.reduced


def test_the_base_is_gathered_and_only_adapters_are_reduced(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["llama-tied"])
    run_ranks(2, count_traffic, folder)


def export(rank, folder, output):
    for compute in (torch.float64, torch.float32):
        model = build(folder, compute=compute)
        draw_b(model)
        target = output / str(compute)
        if rank == 0:
            (target / "adapter").mkdir(parents=True)
            (target / "merged").mkdir()
        torch.distributed.barrier()
        export_adapter(model, target / "adapter", compute, ModelConfig(name="org/base", revision="abc"))
        export_merged(model, folder, target / "merged", compute)
        if rank == 0:
            engine.copy_companions(folder, target / "merged", compute)


def draw_b(model):
    """Give every B values, as after training."""
    generator = torch.Generator().manual_seed(5)
    for name, value in adapter_weights(model).items():
        if "lora_B" in name:
            whole = torch.randn(value.shape, generator=generator) / 4
            rows, first = local_rows(value)
            rows.copy_(whole[first : first + len(rows)])


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_both_exports_give_the_same_logits(name, world_size, tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS[name])
    run_ranks(world_size, export, folder, tmp_path / "exported")
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        exported = tmp_path / "exported" / str(dtype)
        merged = AutoModelForCausalLM.from_pretrained(exported / "merged")
        assert merged.dtype == dtype
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        with torch.no_grad():
            before = base(input_ids=IDS).logits
            adapted = PeftModel.from_pretrained(base, exported / "adapter")
            expected, found = adapted(input_ids=IDS).logits, merged(input_ids=IDS).logits
        assert (expected - before).abs().max() > 0.01 * before.abs().max(), "the adapters do nothing"
        assert (expected - found).abs().max() < tolerance * before.abs().max()
        described = json.loads((exported / "adapter" / "adapter_config.json").read_text())
        assert (described["base_model_name_or_path"], described["revision"]) == ("org/base", "abc")
        assert described["target_modules"] == sorted(described["target_modules"])


def export_from_bf16(rank, folder, output):
    model = build(folder, compute=torch.bfloat16)
    draw_b(model)
    export_adapter(model, output / "adapter", torch.float32, ModelConfig(name=str(folder)))
    export_merged(model, folder, output / "merged", torch.float32)
    adapters = gathered(adapter_weights(model))
    if rank == 0:
        torch.save(adapters, output / "adapters.pt")


def test_what_has_no_adapter_is_exported_as_it_came_though_training_rounded_it(tmp_path):
    folder = save_model(tmp_path / "source", CONFIGS["llama"])
    for form in ("adapter", "merged"):
        (tmp_path / form).mkdir()
    run_ranks(2, export_from_bf16, folder, tmp_path)
    source, merged = (load_file(path) for path in sorted(tmp_path.glob("*/model*.safetensors"), reverse=True))
    adapters = torch.load(tmp_path / "adapters.pt")
    assert source.keys() == merged.keys()
    for name, value in source.items():
        module = name.removesuffix(".weight")
        if f"{module}.lora_A.default.weight" in adapters:
            a, b = (adapters[f"{module}.lora_{x}.default.weight"] for x in "AB")
            value = value + LORA.alpha / LORA.rank * b @ a
            assert torch.allclose(merged[name], value, atol=1e-6), name
        else:
            assert torch.equal(merged[name], value), name
    # The model's own name is a folder here, so the adapter finds its base alone.
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        expected = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "adapter")
        assert torch.equal(alone(input_ids=IDS).logits, expected(input_ids=IDS).logits)


def on_meta(folder, targets=("all-linear",), **changes):
    model = engine.build_on_meta(folder, "sdpa", torch.float32)
    add_adapters(model, LoraConfig(rank=4, target_modules=targets, **changes), torch.float32)
    return model


def adapted_modules(model):
    return {name.partition(".lora_")[0].split(".", 2)[2] for name in adapter_weights(model)}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("gpt2") / "source", CONFIGS["gpt2"])


def test_number_of_trained_parameters(tiny_model):
    model = on_meta(tiny_model)
    hidden, inner, key_value, layers, rank = 32, 64, 16, 3, 4
    attention = 2 * (hidden + hidden) + 2 * (hidden + key_value)
    assert engine.num_trainable(model) == layers * rank * (attention + 3 * (hidden + inner))
    plain = engine.build_on_meta(tiny_model, "sdpa", torch.float32)
    assert engine.num_parameters(model) - engine.num_trainable(model) == engine.num_parameters(plain)
    assert engine.num_trainable(plain) == engine.num_parameters(plain)


def test_all_linear_is_every_linear_module_of_the_layers_and_nothing_else(gpt2):
    model = on_meta(gpt2)
    parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert adapted_modules(model) == {f"{layer}.{part}" for layer in "01" for part in parts}
    assert model.peft_config["default"].target_modules == {"c_attn", "c_fc", "c_proj"}


def test_a_target_can_be_told_apart_by_the_module_it_is_in(gpt2, recwarn):
    model = on_meta(gpt2, ["attn.c_proj"], dropout=0.25, alpha=2)
    assert adapted_modules(model) == {"0.attn.c_proj", "1.attn.c_proj"}
    adapted = model.transformer.h[0].attn.c_proj
    assert (adapted.lora_dropout["default"].p, adapted.scaling["default"]) == (0.25, 0.5)
    assert not recwarn.list


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "q_projection", "proj"])
def test_an_unknown_target_is_refused_with_those_there_are(name, tiny_model):
    with pytest.raises(
        UserError, match=rf"names {name}, but .* LlamaForCausalLM are down_proj, .*, v_proj: choose"
    ):
        on_meta(tiny_model, ["q_proj", name])


def test_no_target_is_refused(tiny_model):
    with pytest.raises(UserError, match="names nothing, but the linear modules"):
        on_meta(tiny_model, [])


def test_a_run_exports_an_adapter_and_goes_on_from_a_checkpoint_bit_for_bit(make_run, tiny_model):
    settings = {
        "method": "lora",
        "max_steps": 4,
        "learning_rate": 0.01,
        "precision": "bf16",
        "export_dtype": "fp32",
    }
    saving = {"every_steps": 2, "keep_after_finish": True}
    run = make_run(training=settings, lora={"rank": 4}, checkpoint=saving)
    run.train(2)
    model = on_meta(tiny_model)
    assert f"{engine.num_parameters(model):,} parameters, {engine.num_trainable(model):,} of them" in run.logs()
    exported = load_file(run.folder.model / "adapter_model.safetensors")
    assert any(value.any() for name, value in exported.items() if "lora_B" in name)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), run.folder.model)
    loaded = adapter_weights(adapted.get_base_model())
    assert {name_in_peft(name) for name in loaded} == exported.keys()
    assert all(torch.equal(value, exported[name_in_peft(name)]) for name, value in loaded.items())
    shutil.rmtree(run.folder.model)
    shutil.rmtree(checkpoints(run.folder.checkpoints)[-1])
    run.train(2, attempt=2)
    assert "resumed from step-00000002" in run.logs()
    again = load_file(run.folder.model / "adapter_model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in exported.items())


def test_a_run_exports_a_merged_model(make_run, tiny_model):
    run = make_run(training={"method": "lora", "max_steps": 2, "learning_rate": 0.01}, lora={"export": "merged"})
    run.train(2)
    merged, base = (
        AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (run.folder.model, tiny_model)
    )
    assert merged.keys() == base.keys()
    changed = {name.rpartition("layers.")[2] for name in base if not torch.equal(merged[name], base[name])}
    assert changed == {f"{name}.weight" for name in adapted_modules(on_meta(tiny_model))}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": {"rank": 4}}, "lora.rank is set, but it has a meaning only with training.method lora"),
        ({"training": {"method": "lora"}, "model": {"name": "a/b", "init": "random"}}, "lora freezes the model"),
        (
            {"training": {"method": "lora"}, "model": {"name": "a/b", "resize_vocabulary": True}},
            "set lora.export to merged",
        ),
    ],
)
def test_settings_that_contradict_adapters_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate({"model": {"name": "a/b"}, "data": {"train": "a/b"}, **settings})


def test_a_merged_model_may_have_a_greater_vocabulary():
    RunConfig.model_validate(
        {
            "model": {"name": "a/b", "resize_vocabulary": True},
            "data": {"train": "a/b"},
            "training": {"method": "lora"},
            "lora": {"export": "merged"},
        }
    )


def test_a_run_on_packed_documents_equals_peft_on_each_document_alone(make_run, tiny_model):
    settings = {"learning_rate": 0.01, "weight_decay": 0.1, "max_grad_norm": 0.05, "export_dtype": "fp64"}
    run = make_run(training={"method": "lora", "epochs": 1.5, **settings}, lora={"rank": 4})
    run.train(2)
    config, rows = run.folder.config(), packed_rows(13)
    training, plan, order = (
        config.training,
        make_plan(config, len(rows)),
        GlobalOrder(len(rows), config.training.seed),
    )
    base, optimizer = plain_peft(tiny_model, config.lora, training)
    init_adapters(base, training.seed)
    losses, norms = [], []
    for number in range(plan.num_steps):
        batch = [rows[order[i]] for i in range(4 * number, min(4 * number + 4, plan.total_samples))]
        loss = sum(loss_of_documents(base, row) for row in batch) / sum(
            (row["labels"] != -100).sum() for row in batch
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, plan.num_steps, training)
        norms.append(plain_step(base, optimizer, loss, training.max_grad_norm))
        losses.append(loss.item())
    assert [step.loss for step in run.steps()] == pytest.approx(losses, abs=1e-12)
    assert [step.grad_norm for step in run.steps()] == pytest.approx(norms, abs=1e-12)
    exported = load_file(run.folder.model / "adapter_model.safetensors")
    for name, value in adapter_weights(base).items():
        assert (exported[name_in_peft(name)] - value).abs().max() < 1e-12, name


def loss_of_documents(model, row):
    total, begin = torch.zeros((), dtype=torch.float64), 0
    for length in row["lengths"]:
        part = slice(begin, begin + length)
        logits = model(input_ids=torch.tensor(row["input_ids"][part])[None]).logits[0]
        total = total + F.cross_entropy(logits, torch.tensor(row["labels"][part]), reduction="sum")
        begin += length
    return total


def test_an_adapter_s_folder_is_for_everyone_and_everywhere(make_run, tiny_model):
    run = make_run(model=tiny_model, training={"method": "lora", "precision": "fp32", "max_steps": 1})
    run.train(1)
    files = {path.name: path for path in run.folder.model.iterdir()}
    # transformers would take a folder with a config.json for a whole model.
    assert "config.json" not in files
    umask = os.umask(0)
    os.umask(umask)
    assert files["adapter_model.safetensors"].stat().st_mode & 0o777 == 0o666 & ~umask
