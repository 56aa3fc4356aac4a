"""One side of the comparison of tokenizing, in a process of its own: `python -m benchmarks.tokenize_side`."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.corpus import Kind
from components.tokenize_dataset.build import Sources, build
from components.tokenize_dataset.workers import usable_cores
from training.config import DataConfig
from training.sources.open import open_train

SEQUENCE_LENGTH = 2048


def main() -> None:
    """Run a side and print its seconds as JSON; what comes before its work, such as imports, is not counted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=list(_SIDES))
    parser.add_argument("kind", choices=["text", "chat"])
    parser.add_argument("rows", type=Path)
    parser.add_argument("tokenizer", type=Path)
    given = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    with tempfile.TemporaryDirectory(dir=given.rows.parent) as scratch:
        work = _SIDES[given.side](tokenizer, given.kind, given.rows, Path(scratch))
        started = time.perf_counter()
        num_tokens = work()
        print(json.dumps({"seconds": time.perf_counter() - started, "tokens": num_tokens}))


def _ours(tokenizer: Any, kind: Kind, rows: Path, scratch: Path) -> Callable[[], int]:
    """All that the step does: read, find duplicates, split, encode, pack, write."""
    data = DataConfig(train=str(rows), sequence_length=SEQUENCE_LENGTH, max_malformed_rows=10**9)

    def work() -> int:
        sources = Sources(open_train(data), ())
        facts = build(scratch, data, tokenizer, sources, lambda text: None)
        return int(facts["num_train_tokens"] + facts["num_heldout_tokens"])

    return work


def _batch(tokenizer: Any, kind: Kind, rows: Path, scratch: Path) -> Callable[[], int]:
    """The tokenizer's own batch encoding of texts that are in memory, rendered already."""
    values = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    if kind == "text":
        texts = [row["text"] for row in values]
    else:
        texts = tokenizer.apply_chat_template([row["messages"] for row in values], tokenize=False)

    def work() -> int:
        return sum(map(len, tokenizer(texts, add_special_tokens=False).input_ids))

    return work


def _map(tokenizer: Any, kind: Kind, rows: Path, scratch: Path) -> Callable[[], int]:
    """`datasets.map` row by row, then TRL's packing, as its trainer prepares data; loading is not counted."""
    import datasets
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    dataset = datasets.load_dataset("json", data_files=str(rows), split="train", cache_dir=str(scratch))
    options = {"num_proc": usable_cores()}

    def encode(row: dict[str, Any]) -> dict[str, list[int]]:
        if kind == "text":
            return {"input_ids": tokenizer(text=row["text"]).input_ids}
        return {
            "input_ids": tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=True).input_ids
        }

    def work() -> int:
        encoded = dataset.map(encode, remove_columns=dataset.column_names, **options)
        packed = pack_dataset(encoded, SEQUENCE_LENGTH, "bfd_split" if kind == "text" else "bfd", options)
        return sum(map(sum, packed["seq_lengths"]))

    return work


_SIDES = {"ours": _ours, "batch": _batch, "map": _map}


if __name__ == "__main__":
    main()
