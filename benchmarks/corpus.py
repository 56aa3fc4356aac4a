"""Real text that every machine with this project has: the sources of torch and transformers, in pieces."""

import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["text", "chat"]

_PACKAGES = ("transformers", "torch")

_CHARACTERS_OF_A_ROW = 2000
"""At least; of a row of text some 500 tokens."""

_MOST_MESSAGES = 4


def write_corpus(path: Path, kind: Kind, num_bytes: int) -> None:
    """Write rows as JSON lines, no two of them the same.

    Args:
        path: File to write, unless it is there.
        kind: `text`: a column of this name. `chat`: user and assistant speak the row's paragraphs in turn.
        num_bytes: Of text, about. There are some 90 MB; beyond, rows come again under another number.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as file:
        written = 0
        for text in _numbered_texts():
            row = {"text": text} if kind == "text" else _chat(text)
            if row is not None:
                written += file.write(json.dumps(row) + "\n")
            if written >= num_bytes:
                break
    unfinished.rename(path)


def _numbered_texts() -> Iterator[str]:
    for copy in itertools.count():
        seen = set()
        for text in _texts():
            if text not in seen:
                seen.add(text)
                yield f"{copy}: {text}" if copy else text


def _texts() -> Iterator[str]:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        for source in sorted(Path(spec.origin).parent.rglob("*.py")):
            text = ""
            for paragraph in source.read_text(encoding="utf-8").split("\n\n"):
                text += f"{paragraph}\n\n"
                if len(text) >= _CHARACTERS_OF_A_ROW:
                    yield text
                    text = ""


def _chat(text: str) -> dict[str, Any] | None:
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    said = paragraphs[: min(_MOST_MESSAGES, len(paragraphs) // 2 * 2)]
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": role, "content": content} for role, content in zip(roles, said, strict=False)]
    return {"messages": messages} if messages else None
