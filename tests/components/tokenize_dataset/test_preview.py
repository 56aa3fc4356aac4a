"""`shardline preview`, and the pieces that it shows."""

import re

import pytest
from typer.testing import CliRunner

from components.tokenize_dataset.preview import pieces_of
from pipelines.cli import app
from tests.components.tokenize_dataset.encoding import chat, encode_one
from training.errors import UserError

ODD = "日本 🙂 é\n\tThe end"


@pytest.mark.parametrize("name", ["smollm2", "gpt2", "qwen3", "mistral"])
def test_the_pieces_are_the_text(real_tokenizer, name):
    real = real_tokenizer(name)
    document, _ = encode_one({"prompt": f"Say {ODD}.", "completion": f" {ODD}!"}, real)
    pieces = pieces_of(document, real)
    assert [number for piece in pieces for number in piece.ids] == document.input_ids.tolist()
    assert "".join(piece.text for piece in pieces if not piece.supervised).removeprefix("<s> ") == f"Say {ODD}."
    assert "".join(piece.text for piece in pieces if piece.supervised) == f" {ODD}!{real.eos_token}"
    assert "\ufffd" not in "".join(piece.text for piece in pieces)


@pytest.fixture
def shown(tmp_path, write_rows, tiny_model, monkeypatch):
    """Runs the command on rows, and returns what it prints."""
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("COLORTERM", "truecolor")

    def show(rows, *arguments, colour=False, **settings):
        settings = {"model.name": tiny_model, "data.train": write_rows(rows), "data.heldout": "null", **settings}
        overrides = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
        if colour:
            monkeypatch.setenv("FORCE_COLOR", "1")
        result = CliRunner().invoke(app, ["preview", *arguments, *overrides], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return show


ROWS = [chat("a b", "c d"), chat("e", "f", "g", "h")]


def test_what_is_learned_is_in_brackets(shown, tmp_path):
    path = tmp_path / "train.jsonl"
    assert shown(ROWS).splitlines() == [
        f"Source    {path}",
        "Shape     OpenAI messages in the column 'messages'",
        f"Row       1 ({path} line 1)",
        "Template  the model's chat template",
        "Tokens    8, of which 3 are learned",
        "Cut       nothing (data.sequence_length is 512)",
        "Prompt    at evaluation, what comes before the last answer",
        "",
        "<|user|>| a| b| <|end|>| <|assistant|>|[ c][ d][ <|end|>]",
        "",
        "[what the model learns to say] what it only reads|",
    ]


def test_a_row_is_chosen(shown):
    output = shown(ROWS, "--row", "2")
    assert re.search(r"Row\s+2 \(", output)
    assert "<|assistant|>|[ f][ <|end|>]" in output
    assert "<|assistant|>|[ h][ <|end|>]" in output


def test_in_a_terminal_what_is_learned_is_in_colour_and_underlined(shown):
    output = shown(ROWS, colour=True)
    assert re.search(r"\x1b\[1;4;[^m]*m c\x1b\[0m", output)
    assert re.search(r"\x1b\[38[^m]*m a\x1b\[0m", output)
    assert "[ c]" not in output
    assert "[ c][ d]" in shown(ROWS, "--plain", colour=True)


@pytest.mark.parametrize("arguments", [[], ["--ids"]])
def test_a_narrow_terminal_shows_all_of_it(shown, tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "24")
    output = re.sub(r"\x1b\[[\d;]*m", "", shown(ROWS, *arguments, colour=True))
    assert "…" not in output
    assert f"{tmp_path}/train.jsonlline1" in re.sub(r"\s", "", output)
    assert "<|assistant|>" in re.sub(r"\s", "", output)


def test_the_ids(shown):
    lines = shown(ROWS, "--ids").splitlines()
    assert "      2           <|user|>" in lines
    assert "      7  learned   c" in lines
    assert re.search(r" 7.*learned.* c", shown(ROWS, "--ids", colour=True))


def test_what_is_cut_and_what_is_split(shown):
    rows = [chat("a", "b c d e f g h i j k")]
    settings = {"data.sequence_length": 8}
    assert re.search(
        r"Cut\s+longer than data.sequence_length 8: 7 of 15 tokens, at the end", shown(rows, **settings)
    )
    output = shown(rows, **settings, **{"data.long_documents": "split"})
    assert re.search(r"Cut\s+longer than data.sequence_length 8, so split into 2 documents", output)
    assert "Document 2 of 2" in output


def test_other_shapes_and_sources(shown, write_rows):
    output = shown([{"text": "a b"}])
    assert re.search(r"Template\s+none", output)
    assert "a|[ b][ <|end|>]" in output
    instruction = [{"instruction": "a", "output": "b"}]
    output = shown(instruction, **{"data.prompt_template": "x {instruction} y"})
    assert re.search(r"Template\s+data.prompt_template, 'x \{instruction\} y'", output)
    heldout = write_rows([{"prompt": "a", "completion": "z"}], "heldout.jsonl")
    output = shown(ROWS, "--source", str(heldout), **{"data.heldout": heldout})
    assert "[ z]" in output or "[z]" in output


@pytest.mark.parametrize(
    ("rows", "arguments", "says"),
    [
        (ROWS, ["--row", "3"], r"--row is 3, but .*train.jsonl has 2 rows"),
        (ROWS, ["--source", "x"], r"--source is 'x', but the sources are .*train.jsonl"),
        ([*ROWS, {"messages": []}], ["--row", "3"], r"line 3 has an empty conversation"),
        ([{"a": 1}], [], r"none of the shapes .* Its columns are a \(number\)"),
    ],
)
def test_mistakes_are_told_in_a_sentence(shown, rows, arguments, says):
    with pytest.raises(UserError, match=says):
        shown(rows, *arguments)
