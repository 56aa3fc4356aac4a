"""Helpers of tests about the registry: write what earlier steps leave, run the step, look at MLflow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.register_model.register import Registration, register_run
from components.step import Step
from training.config import RunConfig
from training.events import EventWriter, Incident, System, TrainStep
from training.run_folder import RunFolder
from training.store import Store

START = 1_790_000_000.0
SECRET = "s3cret-Pa55"

ReadyRun = Callable[..., RunFolder]

WORDS = ["what", "is", "a", "pod", "job", "queue", "gang", "yes", "no", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|> {{ message.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def save_tiny_llama(folder: Path) -> Path:
    """A random model with a tokenizer of a few words and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<|unknown|>", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<|unknown|>", eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_steps(folder: RunFolder, attempt: int, steps: range, start: float, loss: float) -> None:
    writer = EventWriter(folder.events, f"rank-0-{attempt}", attempt)
    for i, step in enumerate(steps):
        writer.write(
            TrainStep(
                time=start + i,
                step=step,
                num_steps=6,
                loss=loss - 0.1 * step,
                grad_norm=1.0,
                learning_rate=1e-4,
                num_tokens=1000,
                num_supervised=400,
                seconds=0.5,
                memory_gib=1.5,
            )
        )
    writer.close()


def write_system(folder: RunFolder, attempt: int, start: float, node: int = 0) -> None:
    writer = EventWriter(folder.events, f"node-{node}", attempt)
    for i in range(3):
        values = {"cpu_utilization_percentage": 50.0 + i, "gpu_0_utilization_percentage": 90.0}
        writer.write(System(time=start + 10 * i, values=values))
    writer.close()


def write_attempt(folder: RunFolder, number: int, outcome: str, start: float, seconds: float = 50.0) -> None:
    record = {
        "number": number,
        "launcher": "local",
        "name": f"{folder.run}-{number}",
        "num_nodes": 1,
        "procs_per_node": 2,
        "started": start,
        "ended": start + seconds,
        "outcome": outcome,
    }
    folder.attempt(number).mkdir(parents=True, exist_ok=True)
    (folder.attempt(number) / "attempt.json").write_text(json.dumps(record))
    if outcome != "succeeded":
        writer = EventWriter(folder.events, "train", number)
        writer.write(Incident(what=outcome, rank=1, exit_code=137, evidence="the last words"))
        writer.close()


def write_evaluation(
    folder: RunFolder, base_loss: float, tuned_loss: float, passed: bool = True, champion: str | None = None
) -> None:
    """What the evaluate step leaves."""
    folder.evaluation.mkdir(exist_ok=True)
    losses = {"base": base_loss, "tuned": tuned_loss, **({"champion": 2.1} if champion else {})}
    for name, loss in losses.items():
        result = {
            "name": name,
            "loss": loss,
            "loss_low": loss - 0.125,
            "loss_high": loss + 0.125,
            "perplexity": 2.718281828**loss,
            "num_supervised": 1234,
            "num_documents": 20,
            "changes": {"base": estimate(tuned_loss - base_loss, 0.0625)} if name == "tuned" else {},
            "sources": [{"name": "org/data", "loss": estimate(loss, 0.125), "changes": {}}],
            "score_changes": {"base": {"rougeL": estimate(0.25, 0.125)}} if name == "tuned" else {},
            "scores": {"rougeL": estimate(0.5, 0.0625), "arc_easy/acc": estimate(0.25, None)},
            "seconds": 1.0,
            "generations": [],
        }
        (folder.evaluation / f"{name}.json").write_text(json.dumps(result))
    write_gate(folder, passed, champion)


def estimate(value: float, half_width: float | None) -> dict[str, float | None]:
    low, high = (None, None) if half_width is None else (value - half_width, value + half_width)
    return {"value": value, "low": low, "high": high, "count": 20}


def write_gate(
    folder: RunFolder, passed: bool, champion: str | None = None, reasons: list[str] | None = None
) -> None:
    reasons = reasons or ["The held-out loss fell." if passed else "The held-out loss rose."]
    content = {"passed": passed, "reasons": reasons, "champion_version": champion, "measured_at": START}
    (folder.evaluation / "gate.json").write_text(json.dumps(content))


def make_ready_run(
    root: Path,
    model: Path,
    run: str = "demo",
    *,
    base_loss: float = 2.5,
    tuned_loss: float = 2.0,
    passed: bool = True,
    champion: str | None = None,
    dataset: str = "d" * 16,
    heldout: str = "e" * 16,
    shape: str = "chat",
    evaluation: dict[str, Any] | None = None,
    **registry: Any,
) -> RunFolder:
    """The run folder of a run whose train and evaluate steps are done."""
    facts = {"source": "org/base", "revision": "abc123", "license": "apache-2.0"}
    with Store(root).publish("models", "m" * 16, facts) as staging:
        for path in model.iterdir():
            (staging / path.name).write_bytes(path.read_bytes())
    source = {
        "name": "org/data",
        "source": "org/data",
        "revision": "abc123",
        "format": shape,
        "form": "conversations",
        "num_rows": 40,
        "num_tokens": 4000,
    }
    facts = {"source": "org/data", "revision": "abc123", "heldout_fingerprint": heldout, "train_sources": [source]}
    with Store(root).publish("datasets", dataset, facts) as staging:
        prompt = {"prompt": "<|user|> what is a pod", "question": "what is a pod", "reference": "yes"}
        (staging / "prompts.jsonl").write_text(json.dumps(prompt) + "\n")
        (staging / "statistics.html").write_text("<html>statistics</html>")
    folder = RunFolder(root, run)
    folder.create(
        RunConfig.model_validate(
            {
                "model": {"name": "org/base"},
                "data": {"train": "org/data"},
                "evaluation": {"max_new_tokens": 4, **(evaluation or {})},
                "registry": registry,
            }
        )
    )
    folder.save_input("model", root / "models" / ("m" * 16))
    folder.save_input("dataset", root / "datasets" / dataset)
    with_files(folder.model, model)
    write_steps(folder, attempt=1, steps=range(1, 5), start=START, loss=3.0)
    # The second attempt goes on after step 2.
    write_steps(folder, attempt=2, steps=range(3, 7), start=START + 100, loss=2.0)
    write_evaluation(folder, base_loss, tuned_loss, passed, champion)
    (folder.evaluation / "report.html").write_text(f"<html>tracking_uri: {registry.get('tracking_uri')}</html>")
    return folder


def with_files(folder: Path, model: Path) -> None:
    """Fill a model folder, and seal it as the train step does."""
    from training.store import seal

    folder.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    seal(folder, {"base_model": "m" * 16})


def register(folder: RunFolder) -> Registration:
    with Step("register_model", str(folder.root), folder.run) as step:
        return register_run(step)


def aliases(uri: str, name: str = "shardline-model") -> dict[str, str]:
    # The SQL store gives numbers, the server text.
    return {alias: str(version) for alias, version in client_of(uri).get_registered_model(name).aliases.items()}


def client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)
