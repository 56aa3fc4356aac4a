import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest

from components.tokenize_dataset.tokenize import tokenize
from tests.doubles.hub import serve_hub
from tests.doubles.models import save_tiny_model
from training.errors import UserError
from training.store import MANIFEST, about, verify


def chats(count):
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [
        {
            "topic": "t",
            "messages": [
                {"role": "user", "content": f"{letters[n % 26]} {letters[n // 26]}"},
                {"role": "assistant", "content": " ".join(letters[: 1 + n % 9])},
            ],
        }
        for n in range(count)
    ]


def samples(folder, name):
    return pa.ipc.open_file(str(folder / name)).read_all().to_pylist()


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}


def published(step):
    folder = step.folder.root / "datasets"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_the_published_folder(step_for, write_rows):
    path = write_rows(chats(60))
    step = step_for(path)

    folder = tokenize(step)

    assert sorted(file.name for file in folder.iterdir()) == sorted(
        ["train.arrow", "heldout.arrow", "prompts.jsonl", MANIFEST]
    )
    assert verify(folder) == []
    facts = about(folder)
    train, heldout = samples(folder, "train.arrow"), samples(folder, "heldout.arrow")
    assert facts["num_train_rows"] + facts["num_heldout_rows"] == 60
    assert facts["num_train_samples"] == len(train)
    for name, rows in (("train", train), ("heldout", heldout)):
        assert facts[f"num_{name}_tokens"] == sum(len(row["input_ids"]) for row in rows)
        assert facts[f"num_{name}_supervised"] == sum(label != -100 for row in rows for label in row["labels"])
        assert facts[f"num_{name}_rows"] == sum(len(row["lengths"]) for row in rows)
    assert (facts["packing"], facts["num_train_documents"]) == ("best_fit", facts["num_train_rows"])
    assert facts["fill"] == facts["num_train_tokens"] / (len(train) * 32)
    assert facts["source"] == str(path)
    assert facts["revision"].startswith("sha256:")
    assert (facts["format"], facts["sequence_length"], facts["eos_token"]) == ("chat", 32, "<|end|>")
    assert facts["vocab_size"] == 31
    assert (facts["num_truncated"], facts["num_leaked_dropped"]) == (0, 0)
    assert len(facts["tokenizer_fingerprint"]) == len(facts["template_fingerprint"]) == 16

    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert len(prompts) == facts["num_heldout_rows"]
    assert all(set(prompt) == {"prompt", "question", "reference"} for prompt in prompts)
    assert (step.folder.path / "inputs" / "dataset").read_text() == str(folder)
    assert step.notes[0].startswith(f"{facts['num_train_rows']} rows → {len(train)} samples of 32 tokens, ")
    assert step.detail == f"{facts['num_train_rows']} rows → {len(train)} samples"


def test_data_in_the_store_is_found_without_loading_a_tokenizer(step_for, write_rows, monkeypatch):
    path = write_rows(chats(60))
    folder = tokenize(step_for(path, "first"))
    monkeypatch.setattr("components.tokenize_dataset.tokenize.load_tokenizer", None)
    step = step_for(path, "second")
    assert tokenize(step) == folder
    assert step.notes[0].startswith("data already in the store")
    assert (step.folder.path / "inputs" / "dataset").is_file()


def test_the_same_rows_give_the_same_bytes(step_for, write_rows):
    path = write_rows(chats(60))
    folder = tokenize(step_for(path))
    first = files_of(folder)
    shutil.rmtree(folder)
    assert tokenize(step_for(path)) == folder
    assert files_of(folder) == first


def test_the_key_changes_with_all_that_the_samples_are_made_from_and_with_nothing_else(
    step_for, write_rows, tiny_model, tmp_path
):
    path = write_rows(chats(60))
    heldout = write_rows(chats(80)[60:], "heldout.jsonl")
    key = tokenize(step_for(path)).name

    # Neither the file's name nor settings of another format.
    copy = shutil.copyfile(path, tmp_path / "copy.jsonl")
    assert tokenize(step_for(copy, "copy", text_column="other", prompt_column="other")).name == key
    # Nor the name of what is chosen anyway.
    assert tokenize(step_for(path, "cut", long_documents="cut")).name == key
    # Nor the model's weights.
    other_weights = shutil.copytree(tiny_model, tmp_path / "other-weights")
    (other_weights / "model.safetensors").write_bytes(b"")
    assert tokenize(step_for(path, "weights", model=other_weights)).name == key

    keys = {key}
    other_template = shutil.copytree(tiny_model, tmp_path / "other-template")
    template = other_template / "chat_template.jinja"
    template.write_text("<|system|>" + template.read_text())
    for number, step in enumerate(
        [
            lambda run: step_for(write_rows(chats(61), "more.jsonl"), run),
            lambda run: step_for(path, run, heldout=str(heldout)),
            lambda run: step_for(path, run, heldout_fraction=0.4),
            lambda run: step_for(path, run, sequence_length=40),
            lambda run: step_for(path, run, max_train_rows=10),
            lambda run: step_for(path, run, packing="none"),
            lambda run: step_for(path, run, long_documents="split"),
            lambda run: step_for(path, run, model=other_template),
        ],
        start=1,
    ):
        keys.add(tokenize(step(f"run-{number}")).name)
        assert len(keys) == number + 1


def test_a_heldout_file(step_for, write_rows):
    rows = chats(60)
    step = step_for(write_rows(rows), heldout=str(write_rows(rows[50:], "heldout.jsonl")))
    facts = about(tokenize(step))
    assert (facts["num_train_rows"], facts["num_heldout_rows"]) == (50, 10)
    assert facts["num_leaked_dropped"] == 10
    assert step.notes[-1] == "10 training rows were dropped, as they are held out too"


def test_rows_that_are_cut_are_told(step_for, write_rows):
    step = step_for(write_rows(chats(60)), sequence_length=10)
    facts = about(tokenize(step))
    assert facts["num_truncated"] > 0 == facts["num_split"]
    assert step.notes[-1].startswith(f"{facts['num_truncated']} rows were longer") and "lost" in step.notes[-1]


def test_rows_that_are_split_are_told(step_for, write_rows):
    rows = chats(60)
    rows[:30] = [
        {"messages": [{"role": "user", "content": "a " * (20 + n)}, {"role": "assistant", "content": "b"}]}
        for n in range(30)
    ]
    step = step_for(write_rows(rows), sequence_length=10, long_documents="split")
    folder = tokenize(step)
    facts = about(folder)
    assert facts["num_split"] >= 30 and facts["num_truncated"] == 0
    assert facts["num_unsupervised_dropped"] > 30
    assert facts["num_train_documents"] == sum(len(row["lengths"]) for row in samples(folder, "train.arrow"))
    split, dropped = step.notes[-2:]
    assert split == f"{facts['num_split']} rows were longer than data.sequence_length and were split"
    assert dropped.startswith(f"{facts['num_unsupervised_dropped']} of the pieces were dropped")


def test_without_packing_every_document_is_a_sample(step_for, write_rows):
    path = write_rows(chats(60))
    step = step_for(path, packing="none")
    alone = tokenize(step)
    packed = tokenize(step_for(path, "packed"))
    facts, of_packed = about(alone), about(packed)
    for name in ("train", "heldout"):
        rows = samples(alone, f"{name}.arrow")
        assert len(rows) == facts[f"num_{name}_rows"] == facts[f"num_{name}_samples"]
        assert all(row["lengths"] == [len(row["input_ids"])] for row in rows)
        # The same documents, otherwise arranged.
        assert facts[f"num_{name}_tokens"] == of_packed[f"num_{name}_tokens"]
    assert facts["heldout_fingerprint"] == of_packed["heldout_fingerprint"]
    assert (facts["packing"], facts["fill"]) == ("none", None)
    mean = facts["num_train_tokens"] / facts["num_train_rows"]
    says = f"{len(samples(alone, 'train.arrow'))} samples of one document each, {mean:,.0f} tokens on average, "
    assert says in step.notes[0]


@pytest.mark.parametrize("data_format", ["text", "prompt_completion"])
def test_other_formats(step_for, write_rows, data_format):
    rows = [{"text": f"a {c} b", "prompt": f"a {c}", "completion": "b"} for c in "cdefghijklmnopqrstuvwxyz"]
    folder = tokenize(step_for(write_rows(rows), format=data_format))
    facts = about(folder)
    assert facts["template_fingerprint"] is None
    num_prompts = len((folder / "prompts.jsonl").read_text().splitlines())
    assert num_prompts == (facts["num_heldout_rows"] if data_format == "prompt_completion" else 0)


def test_lines_of_the_prompts_are_lines_to_every_reader(step_for, write_rows):
    rows = [{"prompt": f"a\u2028{c}\x85b", "completion": "d"} for c in "abcdefghijkl"]
    folder = tokenize(step_for(write_rows(rows), format="prompt_completion", heldout_fraction=0.5))
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == about(folder)["num_heldout_rows"]
    assert "\u2028" in json.loads(lines[0])["prompt"]


def test_a_broken_row_is_named_and_nothing_is_published(step_for, write_rows):
    rows = [*chats(40), {"messages": "none"}, *chats(60)[40:]]
    step = step_for(write_rows(rows))
    with pytest.raises(UserError, match=r"train\.jsonl line 41"):
        tokenize(step)
    assert published(step) == []
    assert not (step.folder.path / "inputs" / "dataset").exists()


def test_a_killed_publish_leaves_nothing(step_for, write_rows, monkeypatch):
    step = step_for(write_rows(chats(60)))
    calls = []

    def die(path, *arguments):
        path.write_bytes(b"half")
        calls.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr("components.tokenize_dataset.write.write_samples", die)
    with pytest.raises(KeyboardInterrupt):
        tokenize(step)
    assert calls
    assert published(step) == []
    assert list((step.folder.root / ".staging").iterdir()) == []


def test_a_hub_model_and_a_hub_data_set(step_for, tiny_model, monkeypatch, tmp_path):
    rows = "".join(json.dumps(row) + "\n" for row in chats(60))
    with serve_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.add("models", "acme/tiny", {path.name: path.read_bytes() for path in tiny_model.iterdir()})
        hub.add("datasets", "acme/chats", {"train.jsonl": rows}, commit="d" * 40)
        folder = tokenize(step_for("acme/chats", model="acme/tiny"))
        assert not any("safetensors" in path for path in hub.downloads())
    facts = about(folder)
    assert (facts["source"], facts["revision"]) == ("acme/chats", "d" * 40)
    assert facts["num_train_rows"] + facts["num_heldout_rows"] == 60


def test_data_of_a_real_model(smollm2_tokenizer, step_for, write_rows, tmp_path):
    model = save_tiny_model(tmp_path / "model", tokenizer=smollm2_tokenizer)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} times {n}?"},
                {"role": "assistant", "content": f"It is {n * n}."},
            ]
        }
        for n in range(200)
    ]
    folder = tokenize(step_for(write_rows(rows), model=model, sequence_length=256))
    facts = about(folder)
    assert facts["fill"] > 0.8
    assert (facts["vocab_size"], facts["eos_token"]) == (49_152, "<|im_end|>")
    answers = [
        smollm2_tokenizer.decode([label for label in row["labels"] if label != -100])
        for row in samples(folder, "train.arrow")
    ]
    assert "".join(answers).count("<|im_end|>") == facts["num_train_rows"]


def test_the_shell_points_at_the_published_folder(step_for, write_rows, tmp_path):
    from kfp import dsl

    from components.tokenize_dataset.component import tokenize_dataset

    step = step_for(write_rows(chats(60)))
    artifact = dsl.Dataset(uri=str(tmp_path / "artifact"))
    tokenize_dataset.python_func(str(step.folder.root), "run", artifact)
    (folder,) = published(step)
    assert artifact.uri == str(folder)
    assert artifact.metadata["fingerprint"] == folder.name
    assert artifact.metadata["num_train_rows"] > 0


@pytest.mark.parametrize(
    "module", ["components.tokenize_dataset.component", "components.tokenize_dataset.tokenize"]
)
def test_neither_the_shell_nor_data_in_the_store_needs_torch(module):
    code = (
        f"import sys, {module}; "
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
