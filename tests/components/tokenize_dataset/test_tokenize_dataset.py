import json
import re
import resource
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
        ["train.arrow", "heldout.arrow", "prompts.jsonl", "statistics.html", MANIFEST]
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
    assert all(set(prompt) == {"prompt", "question", "reference", "source"} for prompt in prompts)
    assert (step.folder.path / "inputs" / "dataset").read_text() == str(folder)
    assert step.notes[0] == f"{path}: OpenAI messages in the column 'messages'"
    assert step.notes[1].startswith(f"{facts['num_train_rows']} rows → {len(train)} samples of 32 tokens, ")
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


def test_the_weights_of_the_model_and_the_name_of_the_file_do_not_make_other_data(
    step_for, write_rows, tiny_model, tmp_path
):
    path = write_rows(chats(60))
    key = tokenize(step_for(path)).name
    copy = shutil.copyfile(path, tmp_path / "copy.jsonl")
    other_weights = shutil.copytree(tiny_model, tmp_path / "other-weights")
    (other_weights / "model.safetensors").write_bytes(b"")
    assert tokenize(step_for(copy, "copy", model=other_weights)).name == key

    other_template = shutil.copytree(tiny_model, tmp_path / "other-template")
    template = other_template / "chat_template.jinja"
    template.write_text("<|system|>" + template.read_text())
    assert tokenize(step_for(path, "template", model=other_template)).name != key


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
    assert says in step.notes[1]


@pytest.mark.parametrize("columns", [["text"], ["prompt", "completion"]])
def test_other_formats(step_for, write_rows, columns):
    rows = [dict.fromkeys(columns, f"a {c} b") for c in "cdefghijklmnopqrstuvwxyz"]
    folder = tokenize(step_for(write_rows(rows)))
    facts = about(folder)
    assert facts["template_fingerprint"] is None
    num_prompts = len((folder / "prompts.jsonl").read_text().splitlines())
    assert num_prompts == (facts["num_heldout_rows"] if len(columns) == 2 else 0)


def test_lines_of_the_prompts_are_lines_to_every_reader(step_for, write_rows):
    rows = [{"prompt": f"a\u2028{c}\x85b", "completion": "d"} for c in "abcdefghijkl"]
    folder = tokenize(step_for(write_rows(rows), format="prompt_completion", heldout_fraction=0.5))
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == about(folder)["num_heldout_rows"]
    assert "\u2028" in json.loads(lines[0])["prompt"]


def test_a_broken_row_is_named_and_nothing_is_published(step_for, write_rows):
    rows = [*chats(40), {"messages": "none"}, *chats(60)[40:]]
    step = step_for(write_rows(rows))
    with pytest.raises(UserError, match=r"1 record cannot be used, .* allows 0: .*train\.jsonl line 41 "):
        tokenize(step)
    assert published(step) == []
    assert list((step.folder.root / ".staging").iterdir()) == []
    assert not (step.folder.path / "inputs" / "dataset").exists()


def test_records_are_left_out_up_to_a_threshold_counted_and_named(step_for, write_rows):
    path = write_rows(chats(40))
    with path.open("a") as file:
        file.write('{"messages": [\n{"messages": []}\n{"messages": "none"}\n')
    step = step_for(path, max_malformed_rows=3)
    folder = tokenize(step)
    facts = about(folder)
    assert (facts["num_malformed"], facts["num_train_rows"] + facts["num_heldout_rows"]) == (3, 40)
    for line, named in zip((41, 42, 43), facts["malformed"], strict=True):
        assert f"train.jsonl line {line} " in named
    page = (folder / "statistics.html").read_text()
    assert "train.jsonl line 42 has" in page
    reasons = "is not valid JSON", "has an empty conversation in the column …", "has text in the column …, "
    assert all(f"<dt>Left out: {reason}" in page for reason in reasons)
    assert step.notes[-1].startswith("3 records were left out")
    # Also where the data is in the store already.
    with pytest.raises(UserError, match=r"3 records cannot be used, .* allows 2: .*line 41 .*; .*line 43 "):
        tokenize(step_for(path, "strict", max_malformed_rows=2))


def test_of_many_malformed_records_the_first_are_named(step_for, write_rows):
    path = write_rows([{"messages": "none"}] * 30, "bad.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in chats(200)) + path.read_text())
    with pytest.raises(UserError, match=r"30 records .*line 201 .*line 210 .*; and 20 more\. Mend") as error:
        tokenize(step_for(path, max_malformed_rows=29))
    assert "line 211" not in str(error.value)


def test_no_record_of_a_source_can_be_used(step_for, write_rows):
    sources = [
        {"source": str(write_rows(chats(40)))},
        {"source": str(write_rows([{"text": " "}] * 12, "e.jsonl"))},
    ]
    with pytest.raises(
        UserError, match=r"no record of .*e\.jsonl can be used: .*line 1 has an empty text.*line 10 "
    ):
        tokenize(step_for(sources, max_malformed_rows=12))


def test_no_record_can_be_read(step_for, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("{\n" * 3)
    with pytest.raises(UserError, match=r"none of the first 3 records of .*train\.jsonl can be read: .*line 1 "):
        tokenize(step_for(path, max_malformed_rows=5))


def test_equal_rows_are_dropped_and_told(step_for, write_rows):
    step = step_for(write_rows(chats(60) + chats(20)))
    facts = about(tokenize(step))
    assert facts["num_duplicates_dropped"] == 20
    assert facts["num_train_rows"] + facts["num_heldout_rows"] == 60
    assert step.notes[-1] == "20 rows were dropped, as they are the same as earlier ones"
    kept = about(tokenize(step_for(write_rows(chats(60) + chats(20)), "kept", deduplicate=False)))
    assert kept["num_train_rows"] + kept["num_heldout_rows"] == 80


def test_sources_are_mixed_by_weight(step_for, write_rows):
    few = write_rows(chats(40), "few.jsonl")
    many = write_rows(
        [{"text": f"{a} {b} {c}"} for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh"], "many.jsonl"
    )
    sources = [{"source": str(few), "weight": 3, "name": "chats"}, {"source": str(many), "weight": 1}]
    step = step_for(sources, heldout_fraction=0.1)
    folder = tokenize(step)
    facts = about(folder)
    chat, text = facts["train_sources"]
    assert (chat["name"], chat["form"], text["name"]) == ("chats", "OpenAI messages", str(many))
    assert (chat["source"], text["source"]) == (str(few), str(many))
    total = chat["num_tokens"] + text["num_tokens"]
    assert total == facts["num_train_tokens"]
    assert chat["num_tokens"] / total == pytest.approx(0.75, abs=0.03)
    assert chat["passes"] > 4 and text["passes"] < 1
    assert any(note.startswith("chats is gone through") for note in step.notes)
    # In heldout.arrow, each source once and one after another.
    heldout = samples(folder, "heldout.arrow")
    first, second = facts["heldout_sources"]
    assert first["num_samples"] + second["num_samples"] == len(heldout)
    for part, source in ((heldout[: first["num_samples"]], first), (heldout[first["num_samples"] :], second)):
        assert sum(len(row["input_ids"]) for row in part) == source["num_tokens"]
        assert sum(len(row["lengths"]) for row in part) == source["num_rows"]
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert [prompt["source"] for prompt in prompts] == ["chats"] * first["num_rows"]


def test_a_source_of_few_rows_is_repeated_as_often_as_its_weight_asks_and_is_never_lost(step_for, write_rows):
    few = write_rows(chats(2), "few.jsonl")
    many = write_rows([{"text": f"{a} {b} {c} a b"} for a in "abcdefgh" for b in "abcdefgh" for c in "abc"])
    shares = []
    for number, weight in enumerate((300, 1e-9)):
        sources = [{"source": str(few), "weight": weight}, {"source": str(many), "weight": 1 / 300}]
        facts = about(tokenize(step_for(sources, f"run-{number}", heldout_fraction=0.01)))
        shares.append([source["num_documents"] for source in facts["train_sources"]])
    (repeated, lost), (least, all_but_few) = shares
    assert repeated > 100 and lost == 1
    assert least == 1 and all_but_few > 100


def test_a_row_that_is_held_out_for_lack_of_others_has_its_prompt(step_for, write_rows):
    path = write_rows([*chats(3)[1:], *chats(1), {"messages": "none"}])
    folder = tokenize(step_for(path, heldout_fraction=1e-9, max_malformed_rows=1))
    (prompt,) = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    (sample,) = samples(folder, "heldout.arrow")
    assert about(folder)["num_heldout_rows"] == 1
    answer = " ".join("abcdefghijklmnopqrstuvwxyz"[label - 5] for label in sample["labels"] if label >= 5)
    assert prompt["reference"] == answer


def test_the_first_rows_of_each_source_are_taken(step_for, write_rows):
    one, other = write_rows(chats(300), "one.jsonl"), write_rows(chats(400)[300:], "other.jsonl")
    facts = about(tokenize(step_for([{"source": str(one)}, {"source": str(other)}], max_train_rows=7)))
    assert [source["num_rows"] for source in facts["train_sources"]] == [7, 7]
    assert facts["num_heldout_rows"] < 12
    # What comes after them is not read, so nothing in it can be wrong.
    with one.open("a") as file:
        file.write("broken\n")
    again = about(tokenize(step_for([{"source": str(one)}, {"source": str(other)}], "again", max_train_rows=7)))
    assert again["heldout_fingerprint"] == facts["heldout_fingerprint"]


def test_how_far_it_is_is_told(step_for, write_rows, monkeypatch):
    monkeypatch.setattr("components.tokenize_dataset.read._NEWS_S", 0.0)
    monkeypatch.setattr("training.sources.lines.BLOCK_BYTES", 2000)
    step = step_for(write_rows(chats(60)))
    tokenize(step)
    told = [note for note in step.notes if re.fullmatch(r"\d+ rows, [\d,]+ tokens so far, [\d,]+ tokens/s", note)]
    assert len(told) > 2 and told[-1].startswith("60 rows")


def test_too_little_room_for_the_samples(step_for, write_rows, monkeypatch):
    import shutil as system

    usage = system.disk_usage("/")._replace(free=100)
    monkeypatch.setattr("components.tokenize_dataset.build.shutil.disk_usage", lambda path: usage)
    step = step_for(write_rows(chats(60)))
    with pytest.raises(UserError, match=r"the packed samples need .* GiB, but the store has 0\.0 GiB free"):
        tokenize(step)
    assert list((step.folder.root / ".staging").iterdir()) == []


@pytest.mark.parametrize("num_bytes", [900, 1200, 2500, 6000])
def test_a_disk_that_fills_up_meanwhile(step_for, write_rows, num_bytes):
    step = step_for(write_rows(chats(60) * 20), deduplicate=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        with pytest.raises(UserError, match=r"the disk of the store .* is full"):
            tokenize(step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((step.folder.root / ".staging").iterdir()) == []


def test_a_killed_publish_leaves_nothing(step_for, write_rows, monkeypatch):
    step = step_for(write_rows(chats(60)))
    calls = []

    def die(self, *arguments):
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("components.tokenize_dataset.write.SampleWriter.write", die)
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
    report = dsl.HTML(uri=str(tmp_path / "report.html"))
    tokenize_dataset.python_func(str(step.folder.root), "run", artifact, report)
    (folder,) = published(step)
    assert artifact.uri == str(folder)
    assert artifact.metadata["fingerprint"] == folder.name
    assert artifact.metadata["num_train_rows"] > 0
    assert (tmp_path / "report.html").read_bytes() == (folder / "statistics.html").read_bytes()


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
