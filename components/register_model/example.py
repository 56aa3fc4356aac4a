"""What a model can be asked: its signature and an example, by the shape of the data that it was tuned on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import DataConfig
from training.store import about

CHAT = "llm/v1/chat"
COMPLETIONS = "llm/v1/completions"


@dataclass(frozen=True)
class Example:
    """A question in the form that the model takes.

    Attributes:
        task: MLflow's name of the form.
        content: The question.
    """

    task: str
    content: Mapping[str, Any]

    def schemas(self) -> tuple[Any, Any]:
        """MLflow's schemas of the form's input and output."""
        from mlflow.types import llm

        if self.task == CHAT:
            return llm.CHAT_MODEL_INPUT_SCHEMA, llm.CHAT_MODEL_OUTPUT_SCHEMA
        return llm.COMPLETIONS_MODEL_INPUT_SCHEMA, llm.COMPLETIONS_MODEL_OUTPUT_SCHEMA


def find_example(dataset: Path, model: Path, data: DataConfig) -> Example:
    """The first held-out prompt: messages if the model was tuned through its chat template, else a text.

    Args:
        dataset: The published data set.
        model: The tuned model, whose tokenizer may have a chat template.
        data: The run's section.
    """
    facts = about(dataset)
    formats = {source["format"] for source in facts.get("train_sources", [])} or {facts.get("format", data.format)}
    asked = "chat" in formats or ("instruction" in formats and data.prompt_template is None)
    prompt = _first_prompt(dataset / "prompts.jsonl")
    if asked and _has_chat_template(model):
        question = prompt.get("question") or "Hello!"
        return Example(CHAT, {"messages": [{"role": "user", "content": question}]})
    return Example(COMPLETIONS, {"prompt": prompt.get("prompt") or "Once upon a time"})


def _first_prompt(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    with file.open(encoding="utf-8") as lines:
        line = next(lines, "")
    content: dict[str, str] = json.loads(line) if line.strip() else {}
    return content


def _has_chat_template(model: Path) -> bool:
    if any((model / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    settings = model / "tokenizer_config.json"
    return settings.is_file() and bool(json.loads(settings.read_text(encoding="utf-8")).get("chat_template"))
