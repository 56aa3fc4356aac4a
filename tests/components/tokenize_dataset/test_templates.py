"""The very tokens that are supervised, with real tokenizers and their templates."""

import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.components.tokenize_dataset.encoding import (
    assert_shifted,
    assistant,
    chat,
    encode,
    encode_one,
    encoder_for,
    marked,
    system,
    targets,
    user,
)
from training.sources.rows import Malformed, Row

CALL = [{"id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
CALLED = [user("1+1?"), assistant(None, tool_calls=CALL), {"role": "tool", "content": "2"}, assistant("Two.")]
TOOLS = [{"type": "function", "function": {"name": "add"}}]

SMOLLM2_SYSTEM = (
    "<|im_start|> system Ċ You Ġare Ġa Ġhelpful ĠAI Ġassistant Ġnamed ĠSm ol LM , Ġtrained Ġby ĠH ugging ĠFace "
    "<|im_end|> Ċ "
)
SMOLLM2_ASKS = "<|im_start|> user Ċ {} ? <|im_end|> Ċ <|im_start|> ass istant Ċ "
GPT2_ASKS = "< | im _ start | > user Ċ {} ? < | im _ end | > Ċ < | im _ start | > ass istant Ċ "
QWEN3_ASKS = "<|im_start|> user Ċ {} <|im_end|> Ċ <|im_start|> assistant Ċ "
NO_THOUGHT = "[<think>] [ĊĊ] [</think>] [ĊĊ] "
QWEN3_CALL = '<tool_call> Ċ {" name ": Ġ" add ", Ġ" arguments ": Ġ{" a ": Ġ 1 }}Ċ </tool_call> <|im_end|>'


def brackets(tokens):
    return " ".join(f"[{token}]" for token in tokens.split())


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (
            "smollm2",
            chat("Why?", "Because."),
            [SMOLLM2_SYSTEM + SMOLLM2_ASKS.format("Why") + "[Because] [.] [<|im_end|>] Ċ"],
        ),
        (
            "smollm2",
            chat("One?", "First.", "Two?", "Second."),
            [
                SMOLLM2_SYSTEM
                + SMOLLM2_ASKS.format("One")
                + "[First] [.] [<|im_end|>] Ċ "
                + SMOLLM2_ASKS.format("Two")
                + "[Second] [.] [<|im_end|>] Ċ"
            ],
        ),
        (
            "smollm2",
            chat("Why?", "Because.", system="Be brief."),
            [
                "<|im_start|> system Ċ Be Ġbrief . <|im_end|> Ċ "
                + SMOLLM2_ASKS.format("Why")
                + "[Because] [.] [<|im_end|>] Ċ"
            ],
        ),
        # Its template's marks are no tokens of GPT-2, so they are spelled, and the model learns to spell them.
        (
            "gpt2",
            chat("Why?", "Because."),
            [GPT2_ASKS.format("Why") + "[Because] [.<] [|] [im] [_] [end] [|] [>] Ċ"],
        ),
        (
            "gpt2",
            chat("One?", "First.", "Two?", "Second."),
            [
                GPT2_ASKS.format("One")
                + "[First] [.<] [|] [im] [_] [end] [|] [>] Ċ "
                + GPT2_ASKS.format("Two")
                + "[Second] [.<] [|] [im] [_] [end] [|] [>] Ċ"
            ],
        ),
        (
            "qwen3",
            chat("Why?", "Because."),
            [QWEN3_ASKS.format("Why ?") + NO_THOUGHT + "[Because] [.] [<|im_end|>] Ċ"],
        ),
        # It removes the thoughts of earlier turns, so each answer has a document that shows it as it is asked for.
        (
            "qwen3",
            chat("One?", "First.", "Two?", "Second."),
            [
                QWEN3_ASKS.format("One ?") + NO_THOUGHT + "[First] [.] [<|im_end|>] Ċ",
                QWEN3_ASKS.format("One ?")
                + "First . <|im_end|> Ċ "
                + QWEN3_ASKS.format("Two ?")
                + NO_THOUGHT
                + "[Second] [.] [<|im_end|>] Ċ",
            ],
        ),
        (
            "qwen3",
            chat("Why?", "Because.", system="Be brief."),
            [
                "<|im_start|> system Ċ Be Ġbrief . <|im_end|> Ċ "
                + QWEN3_ASKS.format("Why ?")
                + NO_THOUGHT
                + "[Because] [.] [<|im_end|>] Ċ"
            ],
        ),
        (
            "qwen3",
            {"messages": [user("Why?"), assistant("Because.", reasoning_content="Well.")]},
            [
                QWEN3_ASKS.format("Why ?")
                + "[<think>] [Ċ] [Well] [.Ċ] [</think>] [ĊĊ] [Because] [.] [<|im_end|>] Ċ"
            ],
        ),
        (
            "qwen3",
            {"messages": CALLED},
            [
                QWEN3_ASKS.format("1 + 1 ?") + NO_THOUGHT + brackets(QWEN3_CALL) + " Ċ",
                QWEN3_ASKS.format("1 + 1 ?")
                + QWEN3_CALL
                + " Ċ "
                + QWEN3_ASKS.format("Ċ <tool_response> Ċ 2 Ċ </tool_response>").replace("user Ċ Ċ", "user Ċ")
                + NO_THOUGHT
                + "[Two] [.] [<|im_end|>] Ċ",
            ],
        ),
        ("mistral", chat("Why?", "Because."), ["<s> ▁[ INST ] ▁Why ? ▁[ / INST ] [▁Because] [.] [</s>]"]),
        (
            "mistral",
            chat("One?", "First.", "Two?", "Second."),
            [
                "<s> ▁[ INST ] ▁One ? ▁[ / INST ] [▁First] [.] [</s>] "
                "▁[ INST ] ▁Two ? ▁[ / INST ] [▁Second] [.] [</s>]"
            ],
        ),
    ],
)
def test_just_the_answers_and_their_ends_are_supervised(real_tokenizer, name, row, expected):
    tokenizer = real_tokenizer(name)
    (encoded,) = encode([row], tokenizer)
    assert [marked(document, tokenizer) for document in encoded.documents] == expected
    assert encoded.num_texts == len(expected)
    for document in encoded.documents:
        assert_shifted(document)
    # What the model is asked at evaluation is what comes before the last answer, to the token.
    last = encoded.documents[-1]
    asked = tokenizer.encode(encoded.prompt["prompt"], add_special_tokens=False)
    *_, first_of_last = [
        i for i in range(len(last.labels)) if last.labels[i] != -100 and last.labels[i - 1] == -100
    ]
    assert last.input_ids[: first_of_last + 1].tolist() == asked


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("smollm2", {"text": "Once upon"}, "Once [Ġupon] [<|im_end|>]"),
        ("gpt2", {"text": "Once upon"}, "Once [Ġupon] [<|endoftext|>]"),
        ("qwen3", {"text": "Once upon"}, "Once [Ġupon] [<|im_end|>]"),
        # The model expects a token before every text, and has a space before a text of its own.
        ("mistral", {"text": "Once upon"}, "<s> [▁Once] [▁upon] [</s>]"),
        ("smollm2", {"prompt": "2+2=", "completion": "4"}, "2 + 2 = [4] [<|im_end|>]"),
        ("gpt2", {"prompt": "2+2=", "completion": "4"}, "2 + 2 = [4] [<|endoftext|>]"),
        ("qwen3", {"prompt": "Is it", "completion": " so?"}, "Is Ġit [Ġso] [?] [<|im_end|>]"),
        ("mistral", {"prompt": "2+2=", "completion": "4"}, "<s> ▁ 2 + 2 = [4] [</s>]"),
        ("mistral", {"prompt": "Is it", "completion": " so?"}, "<s> ▁Is ▁it [▁so] [?] [</s>]"),
    ],
)
def test_texts_without_a_template(real_tokenizer, name, row, expected):
    document, _ = encode_one(row, real_tokenizer(name))
    assert marked(document, real_tokenizer(name)) == expected


def test_tools_are_given_to_the_template(real_tokenizer):
    document, _ = encode_one(
        {"messages": [user("1+1?"), assistant("Two.")], "tools": TOOLS}, real_tokenizer("qwen3")
    )
    text = real_tokenizer("qwen3").decode(document.input_ids)
    assert '<tools>\n{"type": "function", "function": {"name": "add"}}\n</tools>' in text
    assert targets(document, real_tokenizer("qwen3")) == ["<think>\n\n</think>\n\nTwo.<|im_end|>"]


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        (
            "smollm2",
            {"messages": CALLED},
            "has a tool call in message 2, which the model's chat template leaves out",
        ),
        (
            "smollm2",
            {"messages": [user("a"), assistant("b")], "tools": TOOLS},
            "has tools, which the model's chat template leaves out",
        ),
        (
            "smollm2",
            {"messages": [user("a"), assistant("b", thinking="c")]},
            "has a thought in message 2, which the model's chat template leaves out",
        ),
        (
            "mistral",
            {"messages": [system("a"), user("b"), assistant("c")]},
            r"is refused by the model's chat template \(the roles are system, user\)",
        ),
        (
            "mistral",
            {"messages": [user("a"), user("b"), assistant("c")]},
            r"is refused by the model's chat template .* roles must alternate",
        ),
    ],
)
def test_what_a_template_cannot_write_is_told(real_tokenizer, name, row, says):
    (malformed,) = encode([row], real_tokenizer(name))
    assert isinstance(malformed, Malformed)
    assert re.search(says, malformed.problem)


NAMES = ("smollm2", "gpt2", "qwen3", "mistral")

SPELLED = {"smollm2": "<|im_end|>", "gpt2": "<|endoftext|>", "qwen3": "<|im_start|>", "mistral": "</s>"}


@pytest.mark.parametrize("name", SPELLED)
def test_a_special_token_that_a_message_spells_is_text(real_tokenizer, name):
    tokenizer, token = real_tokenizer(name), SPELLED[name]
    number = tokenizer.convert_tokens_to_ids(token)
    plain, _ = encode_one(chat("Why? x", "So x."), tokenizer)
    document, encoded = encode_one(chat(f"Why? {token}", f"So {token}{token}."), tokenizer)
    assert (document.input_ids == number).sum() == (plain.input_ids == number).sum()
    text = tokenizer.decode(plain.input_ids)
    assert tokenizer.decode(document.input_ids) == text.replace("? x", f"? {token}").replace(
        "So x", f"So {token}{token}"
    )
    (said,), (plainly,) = targets(document, tokenizer), targets(plain, tokenizer)
    assert said == plainly.replace("x", token + token)
    # Its prompt, as a text, would be read as the token.
    assert encoded.prompt is None
    assert encode_one(chat("Why?", f"So {token}."), tokenizer)[1].prompt is not None


ODD = [
    "日本 🙂 é",
    "a\u200bb\u200d\ufeffc",
    "nul \x00 end",
    "\u202eright to left\u202c",
    "a\r\nb\tc",
    "👩\u200d👩\u200d👧",
    "\U000f0000x",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_characters_come_through(real_tokenizer, name):
    tokenizer = real_tokenizer(name)
    answers = [answer for content in ODD for answer in (f"Say {content}.", content)]
    for answer, encoded in zip(answers, encode([chat(f"What? {a}", a) for a in answers], tokenizer), strict=True):
        assert encoded.prompt["reference"] == answer
        (said,) = targets(encoded.documents[0], tokenizer)
        assert answer in said


@pytest.fixture(scope="module")
def chat_encoder(real_tokenizer):
    @functools.cache
    def make(name, *columns):
        return encoder_for([{**chat("a", "b"), **dict.fromkeys(columns)}], real_tokenizer(name))

    return make


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_in_random_conversations_just_what_the_assistant_says_is_supervised(
    real_tokenizer, chat_encoder, name, data
):
    tokenizer = real_tokenizer(name)
    said = st.text(alphabet="ab .,\n0é日🙂<|>[]/im_end", min_size=1, max_size=20).filter(str.strip)
    contents = data.draw(st.lists(st.tuples(said, said), min_size=1, max_size=3))
    row = Row("row", chat(*(content for pair in contents for content in pair)))
    (encoded,) = chat_encoder(name).encode([row])
    answers = [answer for _, answer in contents]
    opening = "<think>\n\n</think>\n\n" if name == "qwen3" else ""
    end = "</s>" if name == "mistral" else "<|im_end|>"
    if name == "qwen3":
        # Which the template takes from the beginning of an answer.
        answers = [answer.lstrip("\n") for answer in answers]
        assert encoded.num_texts == len(answers)
    taught = [target for document in encoded.documents for target in targets(document, tokenizer)]
    expected = [f"{opening}{answer}{end}" for answer in answers]
    if name == "mistral":
        # The space that its template writes before an answer is not seen when the answer is decoded alone.
        taught, expected = ([text.removeprefix(" ") for text in texts] for texts in (taught, expected))
    assert taught == expected


KEYS = (
    *(
        "role",
        "content",
        "from",
        "value",
        "name",
        "weight",
        "train",
        "tool_calls",
        "function_call",
        "tool_call_id",
    ),
    *("type", "function", "arguments", "text", "thinking", "id", "properties"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 2)
    | st.sampled_from(
        ["user", "assistant", "tool", "a", "", "{", '{"name": "a"}', "\ud800", "<|im_end|>", "</think>"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.sampled_from(["a", " b\n", "<think>\nc\n</think>\nd", "<|im_end|>", "<tool_response>"])
OBJECTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": TEXTS},
        optional={
            "thinking": TEXTS,
            "tool_calls": st.just([{"name": "f", "arguments": "{}"}]),
            "weight": st.just(0),
        },
    )
    | OBJECTS.map(lambda more: {**assistant("e"), **more}),
    max_size=4,
).map(lambda turns: [user("a"), *turns, assistant("b")])


@settings(max_examples=150, deadline=None)
@given(messages=TURNS | VALUES, tools=st.none() | st.lists(OBJECTS, max_size=2) | VALUES)
def test_whatever_a_row_holds_just_its_answers_are_supervised_or_it_is_malformed(
    chat_encoder, real_tokenizer, messages, tools
):
    (result,) = chat_encoder("qwen3", "tools").encode([Row("row", {"messages": messages, "tools": tools})])
    if isinstance(result, Malformed):
        return
    tokenizer = real_tokenizer("qwen3")
    asks, end = tokenizer.encode("<|im_start|>assistant\n"), tokenizer.convert_tokens_to_ids("<|im_end|>")
    taught = []
    for document in result.documents:
        ids = document.input_ids.tolist()
        on = [False, *(document.labels[:-1] != -100), False]
        begins = [place for place in range(1, len(ids)) if on[place] and not on[place - 1]]
        for begin in begins:
            stop = next(place for place in range(begin, len(ids) + 1) if not on[place])
            # From the generation prompt to the end of the turn, and no further.
            assert ids[begin - len(asks) : begin] == asks
            assert ids[begin:stop].index(end) == stop - begin - 1
            taught.append(tokenizer.decode(ids[begin:stop]))
    answers = [
        m for m in messages if m["role"] == "assistant" and m.get("weight") != 0 and m.get("train") is not False
    ]
    # Each once, and in its turn.
    assert len(taught) == len(answers)
    for said, answer in zip(taught, answers, strict=True):
        content = answer["content"]
        calls = answer.get("tool_calls") or answer.get("function_call")
        if isinstance(content, str) and "</think>" not in content and not calls:
            assert said.endswith(content.lstrip("\n") + "<|im_end|>")


def test_a_row_that_is_nested_too_deeply(chat_encoder):
    deep = "[" * 900 + "]" * 900
    row = {**chat("a", "b"), "tools": f'[{{"name": {deep}}}]'}
    (result,) = chat_encoder("qwen3", "tools").encode([Row("row", row)])
    assert "is nested too deeply" in result.problem
