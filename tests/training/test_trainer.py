"""The sharded trainer against the plainest possible single-process loop, and its own resumed runs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from tests.runs import free_port, packed_rows
from training.checkpoint import checkpoints
from training.config import TrainingConfig
from training.data import GlobalOrder
from training.events import Span, read_events
from training.optim import learning_rate
from training.skipped import skip_step
from training.trainer import make_plan


def reference_run(source, rows, config):
    """Every document alone, no padding, no packing, no sharding; AdamW by torch's plain implementation."""
    training = config.training
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_eps,
        foreach=False,
    )
    plan = make_plan(config, len(rows))
    order = GlobalOrder(len(rows), training.seed)
    losses, norms = [], []
    for step in range(plan.num_steps):
        first = step * training.global_batch_size
        last = min(first + training.global_batch_size, plan.total_samples)
        batch = [rows[order[position]] for position in range(first, last)]
        count = sum((row["labels"] != -100).sum() for row in batch)
        loss = torch.zeros((), dtype=torch.float64)
        for row in batch:
            ends = np.cumsum(row["lengths"])
            for begin, end in zip([0, *ends[:-1]], ends, strict=True):
                logits = model(input_ids=torch.tensor(row["input_ids"][begin:end])[None]).logits[0]
                labels = torch.tensor(row["labels"][begin:end])
                loss = loss + F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        (loss / count).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm or math.inf).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, plan.num_steps, training)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss / count).item())
    return model, losses, norms


def exported(run):
    return AutoModelForCausalLM.from_pretrained(run.folder.model, dtype=torch.float64)


def largest_difference(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return max((a - b).abs().max().item() for (name, a), (other_name, b) in pairs if name == other_name)


@pytest.mark.parametrize(
    ("world_size", "strategy", "micro_batch_size", "checkpointing"),
    [
        (1, "FULL_SHARD", 2, "none"),
        (2, "FULL_SHARD", 1, "full"),
        (2, "SHARD_GRAD_OP", 2, "none"),
        (2, "NO_SHARD", 1, "none"),
        (4, "HYBRID_SHARD", 1, "none"),
    ],
)
def test_sharded_run_equals_one_process(
    make_run, tiny_model, world_size, strategy, micro_batch_size, checkpointing
):
    run = make_run(
        training={
            "micro_batch_size": micro_batch_size,
            "learning_rate": 0.01,
            "weight_decay": 0.1,
            "epochs": 1.5,
            "max_grad_norm": 0.5,
            "activation_checkpointing": checkpointing,
            "export_dtype": "fp64",
        },
        parallel={"strategy": strategy, **({"shard_group_size": 2} if strategy == "HYBRID_SHARD" else {})},
    )
    run.train(world_size)
    model, losses, norms = reference_run(tiny_model, packed_rows(13), run.folder.config())
    # 13 rows × 1.5 in batches of 4: five steps, the last one short.
    assert [step.step for step in run.steps()] == [1, 2, 3, 4, 5]
    assert [step.loss for step in run.steps()] == pytest.approx(losses, abs=1e-12)
    assert [step.grad_norm for step in run.steps()] == pytest.approx(norms, abs=1e-12)
    assert min(norms) > 0.5, "clipping was not exercised"
    assert largest_difference(exported(run), model) < 1e-12


def test_resumed_run_is_bitwise_equal_to_one_never_interrupted(make_run):
    settings = {"max_steps": 6, "learning_rate": 0.01, "precision": "bf16", "export_dtype": "fp32"}
    quiet = make_run("quiet", training=settings)
    quiet.train(2)
    stopped = make_run("stopped", training=settings, checkpoint={"every_steps": 2})
    process = stopped.popen(2)
    wait_for_step(stopped, 2, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    saved = checkpoints(stopped.folder.checkpoints)
    assert len(saved) == 1 or saved[-1].name > saved[0].name
    done = int(saved[-1].name.removeprefix("step-"))
    assert done < 6, "the run was over before it could be stopped"
    stopped.train(2, attempt=2)
    assert [s.loss for s in stopped.steps()] == [s.loss for s in quiet.steps()]
    assert [s.grad_norm for s in stopped.steps()] == [s.grad_norm for s in quiet.steps()]
    assert largest_difference(exported(quiet), exported(stopped)) == 0
    assert checkpoints(stopped.folder.checkpoints) == []


def test_resume_at_another_world_size_trains_on_the_same_samples(make_run):
    settings = {"max_steps": 5, "learning_rate": 0.01, "export_dtype": "fp64"}
    quiet = make_run("quiet", training=settings)
    quiet.train(1)
    moved = make_run("moved", training=settings, checkpoint={"every_steps": 1})
    process = moved.popen(2)
    wait_for_step(moved, 1, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    moved.train(4, attempt=2)
    assert [s.loss for s in moved.steps()] == pytest.approx([s.loss for s in quiet.steps()], abs=1e-12)
    assert largest_difference(exported(quiet), exported(moved)) < 1e-12


def test_untied_embeddings_and_companions_are_exported(make_run, tmp_path):
    from tests.runs import llama_config, save_model

    source = save_model(tmp_path / "untied", llama_config(tie_word_embeddings=False))
    (source / "tokenizer.json").write_text("{}")
    run = make_run(model=source, training={"max_steps": 1, "export_dtype": "bf16"})
    run.train(2)
    files = {path.name for path in run.folder.model.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "manifest.json"} <= files
    model = AutoModelForCausalLM.from_pretrained(run.folder.model)
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_a_step_without_supervised_tokens_names_the_step(make_run):
    rows = packed_rows(8)
    for row in rows:
        row["labels"][:] = -100
    run = make_run(rows=rows, training={"max_steps": 2})
    run.train(2, expect=64)
    assert "no token of the 4 samples of step 1 is supervised" in run.error()


def test_a_loss_that_is_not_finite_stops_all_ranks(make_run):
    run = make_run(training={"max_steps": 30, "learning_rate": 1e300, "warmup_ratio": 0})
    run.train(2, expect=1)
    for rank in range(2):
        record = json.loads((run.folder.attempt(1) / "errors" / f"rank-{rank}.json").read_text())
        assert record["what"] == "nonfinite" and record["step"] == len(run.steps()) + 1
        assert record["message"].startswith(f"the loss of step {record['step']} is ")
        assert "lower training.learning_rate" in record["message"]


def test_a_run_leaves_out_the_steps_that_are_written_down(make_run):
    run = make_run(training={"max_steps": 2})
    skip_step(run.folder, 1)
    run.train(2)
    assert [(step.skipped, step.grad_norm > 0) for step in run.steps()] == [(True, False), (False, True)]
    assert "step 1/2" in run.logs() and run.logs().count("(left out)") == 1
    restored = [e for e in read_events(run.folder.events) if isinstance(e, Span) and e.name == "restore"]
    assert {(span.source, span.phase) for span in restored} >= {("rank-0", "start"), ("rank-0", "end")}


def test_a_world_size_that_does_not_divide_the_batch_is_refused_in_words(make_run):
    run = make_run(training={"max_steps": 1})
    run.train(3, expect=64)
    assert "not a multiple of 3 ranks" in run.error()


def test_a_checkpoint_of_another_data_set_is_refused(make_run):
    run = make_run(training={"max_steps": 30}, checkpoint={"every_steps": 1})
    process = run.popen(1)
    wait_for_step(run, 1, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    other = make_run("run", num_rows=9, training={"max_steps": 30}, checkpoint={"every_steps": 1})
    other.train(1, attempt=2, expect=64)
    assert "was made with the dataset rows-13, but this run uses rows-9" in other.error(attempt=2)


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one_and_never_for_none(make_run):
    saving = {"every_steps": 2, "keep": 2, "keep_after_finish": True}
    run = make_run(training={"max_steps": 4}, checkpoint=saving)
    run.train(2)
    older, newest = checkpoints(run.folder.checkpoints)
    torn = run.folder.checkpoints / ".staging-1-step-00000004"
    torn.mkdir()
    damage(newest)
    shutil.rmtree(run.folder.model)
    run.train(2, attempt=2)
    assert "step-00000004 is damaged and was moved to damaged-step-00000004" in run.logs()
    assert "resumed from step-00000002: step 2 of 4" in run.logs()
    assert checkpoints(run.folder.checkpoints) == [older, newest] and not torn.exists()
    (older / "manifest.json").write_text("[]")
    damage(newest)
    for attempt in (3, 4):
        run.train(2, attempt=attempt, expect=64)
        assert "are damaged (damaged-step-00000002, damaged-step-00000004): restore one" in run.error(attempt)


def damage(checkpoint):
    shard = next(checkpoint.glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def test_a_rank_that_waits_for_others_at_its_start_dies_of_sigterm_at_once(make_run):
    run = make_run()
    rank = lonely_rank(run)
    deadline = time.monotonic() + 60
    while not (run.folder.events / "rank-1.jsonl").exists():
        assert rank.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # now it is in C++, where Python's handlers do not run
    rank.terminate()
    assert rank.wait(timeout=10) == -signal.SIGTERM


def test_a_rank_whose_node_died_before_it_could_look_leaves_at_once(make_run):
    run = make_run()
    node = subprocess.Popen(["true"])
    node.wait()
    assert lonely_rank(run, SHARDLINE_NODE_PID=str(node.pid)).wait(timeout=60) == 143
    assert list(run.folder.events.iterdir()) == []


def lonely_rank(run, **env):
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return subprocess.Popen(
        [sys.executable, "-m", "training.worker", str(run.folder.path)],
        env={**os.environ, **ranks, **address, **env},
        stderr=subprocess.DEVNULL,
    )


def test_logs_are_kept_per_rank(make_run):
    run = make_run(training={"max_steps": 2})
    process = run.popen(2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    logs = run.folder.attempt(1) / "logs"
    assert "step 2/2" in (logs / "rank-0.out").read_text()
    assert (logs / "rank-1.out").exists() and (logs / "rank-1.err").exists()
    assert "step 2/2" in output, "the node's own output carries the ranks' lines"


def test_learning_rate_warms_up_and_reaches_the_floor_at_the_last_step():
    cosine = TrainingConfig(learning_rate=1.0, schedule="cosine", warmup_ratio=0.2, min_lr_ratio=0.1)
    rates = [learning_rate(step, 10, cosine) for step in range(10)]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    linear = cosine.model_copy(update={"schedule": "linear"})
    assert learning_rate(9, 10, linear) == pytest.approx(0.1)
    assert learning_rate(5, 9, linear.model_copy(update={"warmup_ratio": 0.0, "min_lr_ratio": 0.0})) == 0.375
    constant = cosine.model_copy(update={"schedule": "constant"})
    assert learning_rate(9, 10, constant) == 1.0


def wait_for_step(run, number, process):
    deadline = time.monotonic() + 60
    while not any(step.step >= number for step in run.steps()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
