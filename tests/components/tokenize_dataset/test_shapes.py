"""Which shape rows have, and what is made of each."""

import json

import pytest

from components.tokenize_dataset.messages import conversation
from components.tokenize_dataset.shapes import detect
from components.tokenize_dataset.unusable import UnusableRow
from tests.components.tokenize_dataset.encoding import as_rows, assistant, chat, system, user
from training.config import DataConfig
from training.errors import UserError

SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": None}}]


def found(rows, **data):
    (source,) = DataConfig(train="t.jsonl", **data).train_sources
    return detect(as_rows(rows), source, "t.jsonl")


def read(row, rows=None, system_prompt=None, **data):
    return conversation(as_rows([row])[0], found(rows or [row], **data), system_prompt)


@pytest.mark.parametrize(
    ("row", "shape_format", "sentence"),
    [
        (chat("a", "b"), "chat", "OpenAI messages in the column 'messages'"),
        ({"messages": json.dumps(chat("a", "b")["messages"])}, "chat", "OpenAI messages in the column 'messages'"),
        (
            {**chat("a", "b"), "tools": json.dumps(TOOLS), "id": 3},
            "chat",
            "OpenAI messages in the column 'messages', tools in 'tools'",
        ),
        # UltraChat's, whose prompt is in the messages too.
        ({**chat("a", "b"), "prompt": "a", "prompt_id": "x"}, "chat", "OpenAI messages in the column 'messages'"),
        (
            {"conversations": SHAREGPT, "system": "c"},
            "chat",
            "ShareGPT conversations in the column 'conversations', system messages in 'system'",
        ),
        (
            {"prompt": "a", "completion": "b"},
            "prompt_completion",
            "prompts and completions in the columns 'prompt' and 'completion'",
        ),
        (
            {"prompt": [user("a")], "completion": [assistant("b")]},
            "prompt_completion",
            "prompts and completions as lists of messages in the columns 'prompt' and 'completion'",
        ),
        (
            {"prompt": json.dumps([user("a")]), "completion": json.dumps([assistant("b")])},
            "prompt_completion",
            "prompts and completions as lists of messages in the columns 'prompt' and 'completion'",
        ),
        # Alpaca's and Dolly's.
        (
            {"instruction": "a", "input": "b", "output": "c"},
            "instruction",
            "instructions and outputs in the columns 'instruction' and 'output', inputs in 'input'",
        ),
        (
            {"instruction": "a", "context": "b", "response": "c", "category": "d"},
            "instruction",
            "instructions and outputs in the columns 'instruction' and 'response', inputs in 'context'",
        ),
        ({"text": "a", "meta": {"url": "b"}}, "text", "plain text in the column 'text'"),
    ],
)
def test_a_shape_is_found_and_told(row, shape_format, sentence):
    shape = found([row])
    assert (shape.format, shape.sentence()) == (shape_format, sentence)


def test_a_union_of_columns_is_told_apart_by_what_is_in_them():
    rows = [{"text": None, "messages": chat("a", "b")["messages"]}, {"text": None, "messages": None}]
    assert found(rows).form == "OpenAI messages"


def test_columns_are_taken_as_they_are_given():
    rows = [{"turns": SHAREGPT, "q": "a", "a": "b", "messages": None}]
    shape = found(rows, columns={"messages": "turns"})
    assert shape.sentence() == "ShareGPT conversations in the column 'turns'"
    shape = found(rows, columns={"prompt": "q", "completion": "a"})
    assert shape.sentence() == "prompts and completions in the columns 'q' and 'a'"
    rows = [{"text": "a", "instruction": "b", "output": "c"}]
    assert found(rows, format="instruction").columns == {"instruction": "instruction", "output": "output"}
    assert found(rows, columns={"text": "text"}).format == "text"


@pytest.mark.parametrize(
    ("rows", "data", "says"),
    [
        ([], {}, "t.jsonl has no row"),
        (
            [{"question": "a", "answer": 1}],
            {},
            r"none of the shapes .* Its columns are question \(text\), answer \(number\)\. .*"
            r"prompt_completion with \{prompt: …, completion: …\}",
        ),
        # Stanford's Alpaca has the rendered text too.
        (
            [{"instruction": "a", "output": "b", "text": "c"}],
            {},
            r"can be read as instruction \(instruction, output\) and as text \(text\): set data.format",
        ),
        ([{**chat("a", "b"), "text": "c"}], {}, r"can be read as chat \(messages\) and as text \(text\)"),
        (
            [{"instruction": "a", "input": "b", "context": "c", "output": "d"}],
            {"format": "instruction"},
            r"columns input and context, each of which could be the input: set data.columns to \{input: input\}",
        ),
        (
            [{"messages": "a"}],
            {"format": "chat"},
            r"needs messages \(a list of .*\), but t.jsonl has the columns messages \(text\)",
        ),
        ([{"message": []}], {"format": "text"}, r"needs text \(text\), but .* the columns message \(list\)"),
        (
            [{"massages": 1}],
            {"columns": {"messages": "messages"}},
            "in 'messages', but its columns are massages: set messages to one of these, perhaps massages",
        ),
        (
            [{"text": "a"}],
            {"format": "text", "columns": {"prompt": "text"}},
            "data.columns names prompt for t.jsonl, but rows of the format text have text",
        ),
        (
            [chat("a", "b"), {"messages": SHAREGPT}],
            {},
            "mixed: t.jsonl line 1 has OpenAI messages, but t.jsonl line 2 has ShareGPT conversations",
        ),
    ],
)
def test_what_cannot_be_told_is_an_error_that_shows_the_columns(rows, data, says):
    with pytest.raises(UserError, match=says):
        found(rows, **data)


def test_a_few_rows_of_another_shape_do_not_hide_the_shape():
    rows = [chat("a", "b")] * 19 + [{"messages": SHAREGPT}]
    assert found(rows).form == "OpenAI messages"
    with pytest.raises(
        UnusableRow,
        match="has ShareGPT conversations, but its source has OpenAI messages in the column 'messages'",
    ):
        read({"messages": SHAREGPT}, rows)


def test_openai_messages_become_what_templates_take():
    message = {"role": "assistant", "content": None, "refusal": None, "audio": None}
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    row = {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
            {**user("1+1?"), "name": "Ann", "tool_calls": None},
            {**message, "tool_calls": calls},
            {"role": "tool", "content": "2", "tool_call_id": "c1"},
            {**message, "function_call": {"name": "say", "arguments": {"a": "2", "b": None}}},
            {"role": "function", "name": "say", "content": "said"},
            {**message, "content": "Two.", "thinking": "Hm."},
            user("Thanks"),
        ],
        "tools": TOOLS,
    }
    assert read(row) == (
        [
            system("Be\nbrief."),
            {**user("1+1?"), "name": "Ann"},
            assistant("", tool_calls=[{**calls[0], "function": {"name": "add", "arguments": {"a": 1}}}]),
            {"role": "tool", "content": "2", "tool_call_id": "c1"},
            assistant("", tool_calls=[{"type": "function", "function": {"name": "say", "arguments": {"a": "2"}}}]),
            {"role": "tool", "content": "said", "name": "say"},
            assistant("Two.", reasoning_content="Hm."),
        ],
        [False, False, True, False, True, False, True],
        [{"type": "function", "function": {"name": "add"}}],
    )


def test_sharegpt_conversations_become_the_same():
    row = {
        "system": "Be brief.",
        "conversations": [
            {"from": "human", "value": "1+1?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "Two."},
            {"from": "human", "value": "Thanks"},
        ],
        "tools": json.dumps([{"name": "add"}]),
    }
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert read(row) == (
        [
            system("Be brief."),
            user("1+1?"),
            assistant("", tool_calls=[call]),
            {"role": "tool", "content": "2"},
            assistant("Two."),
        ],
        [False, False, True, False, True],
        [{"name": "add"}],
    )


def test_nulls_that_someone_wrote_stay_and_those_of_a_table_go(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def call(name, **arguments):
        return {"function": {"name": name, "arguments": arguments}}

    def arguments_of(row):
        message = conversation(as_rows([row])[0], found([row]), None).messages[1]
        return [each["function"]["arguments"] for each in message["tool_calls"]]

    written = {"a": 1, "b": None}
    for calls in (
        [{"name": "f", "arguments": json.dumps(written)}],
        [{"function": {"name": "f", "arguments": json.dumps(written)}}],
        json.dumps([{"name": "f", "arguments": written}]),
    ):
        assert arguments_of({"messages": [user("a"), assistant(None, tool_calls=calls)]}) == [written]
    said = {"from": "function_call", "value": json.dumps({"name": "f", "arguments": written})}
    assert arguments_of({"conversations": [SHAREGPT[0], said]}) == [written]
    tool = {"name": "f", "parameters": {"default": None}}
    for tools in (json.dumps([tool]), [json.dumps(tool)]):
        assert read({**chat("a", "b"), "tools": tools}).tools == [tool]
    # A table gives every call the arguments of all.
    rows = [
        {"messages": [user("a"), assistant("b", tool_calls=[call("f", x=1)], weight=1)]},
        {"messages": [user("c"), {**assistant("d"), "tool_calls": [call("g", y="2"), call("f", x=3)]}]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    first, second = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert "y" in first["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert arguments_of(first) == [{"x": 1}]
    assert arguments_of(second) == [{"y": "2"}, {"x": 3}]


def test_messages_that_are_not_weighted_are_not_learned():
    row = {
        "messages": [
            *(user("a"), assistant("b", weight=0), user("c"), assistant("d", weight=1)),
            *(user("e"), assistant("f", train=False), user("g"), assistant("h", weight=0)),
        ]
    }
    said = read(row)
    assert [message["content"] for message in said.messages] == ["a", "b", "c", "d"]
    assert said.learned == [False, False, False, True]


def test_of_a_prompt_as_messages_nothing_is_learned():
    row = {"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]}
    assert read(row).learned == [False, False, False, True]


def test_an_instruction_is_a_question_with_its_input_below():
    row = {"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."}
    assert read(row).messages == [system("Be brief."), user("Add.\n\n1 2"), assistant("3")]
    assert read({**row, "input": " ", "system": None}, [row]).messages == [user("Add."), assistant("3")]


def test_the_system_prompt_is_for_conversations_that_have_none():
    assert read(chat("a", "b"), system_prompt="S").messages[0] == system("S")
    assert read(chat("a", "b", system="T"), system_prompt="S").messages[0] == system("T")
    assert read({**chat("a", "b"), "system": "U"}, system_prompt="S").messages[0] == system("U")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": []}, "has an empty conversation in the column 'messages'"),
        ({"messages": None}, "has null in the column 'messages', but its source has OpenAI messages"),
        ({}, "has no column 'messages', but its source has OpenAI messages"),
        ({"messages": "a"}, "has text in the column 'messages'"),
        ({"prompt": "a", "completion": "b"}, "has prompts and completions, but its source has OpenAI messages"),
        ({"messages": [system("a")]}, "has no answer of the assistant to learn"),
        ({"messages": [user("a")]}, "has no answer of the assistant to learn"),
        ({"messages": [user("a"), assistant("b", weight=0)]}, "has no answer of the assistant to learn"),
        ({"messages": [user("a"), assistant(" \n")]}, "has an empty answer in message 2"),
        ({"messages": [user("a"), assistant(None)]}, "has an empty answer in message 2"),
        ({"messages": [user("a"), "b"]}, "has text as message 2, where an object with role and content"),
        (
            {"messages": [user("a"), {"role": "bot", "content": "b"}]},
            r"has the role 'bot' in message 2, .* system, ",
        ),
        ({"messages": [user("a"), {"from": "gpt", "value": "b"}]}, "has the role None in message 2"),
        ({"messages": [user(None), assistant("b")]}, "has no content in message 1, which is of the role 'user'"),
        ({"messages": [user(3), assistant("b")]}, "has number as message 1, where text"),
        (
            {"messages": [user([{"type": "image_url", "image_url": {}}]), assistant("b")]},
            "has a part of the type 'image_url' in message 1, but only text parts",
        ),
        ({"messages": [user("a"), assistant("b", weight=0.5)]}, "has the weight 0.5 in message 2"),
        (
            {"messages": [user("a"), assistant("b", train="no")]},
            "has 'no' as train in message 2, but it is true or",
        ),
        ({"messages": [user("a"), assistant("b", tool_calls=[{"id": "c"}])]}, "a tool call without a name"),
        ({**chat("a", "b"), "tools": "add"}, "has text in the column 'tools', where a list of tools"),
        ({**chat("a", "b"), "system": 3}, "has number in the column 'system', where text is needed"),
    ],
)
def test_rows_that_cannot_be_used_say_why(row, says):
    usual = {**chat("a", "b"), "tools": None, "system": None}
    with pytest.raises(UnusableRow, match=says):
        read(row, [usual], format="chat", columns={"messages": "messages", "tools": "tools", "system": "system"})
