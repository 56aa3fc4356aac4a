"""From rows to documents, with templates of all kinds and a tokenizer of whole words."""

import re

import numpy as np
import pytest

from tests.components.tokenize_dataset.encoding import (
    as_rows,
    assert_shifted,
    assistant,
    chat,
    encode,
    encode_one,
    encoder_for,
    system,
    targets,
    user,
)
from tests.doubles.models import CHAT_TEMPLATE, tiny_tokenizer
from training.errors import UserError
from training.sources.rows import Malformed


def problem(row, tokenizer, shape_rows=None, **data):
    (malformed,) = encode([row], tokenizer, shape_rows, **data)
    assert isinstance(malformed, Malformed)
    assert malformed.origin == "t.jsonl line 1"
    return malformed.problem


# Chat templates


def test_smollm2_learns_the_answer_and_its_end(smollm2_tokenizer):
    document, encoded = encode_one(chat("What is FSDP?", "It shards.\nAll of it."), smollm2_tokenizer)
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is FSDP?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2_tokenizer.decode(document.input_ids) == f"{prompt}It shards.\nAll of it.<|im_end|>\n"
    assert targets(document, smollm2_tokenizer) == ["It shards.\nAll of it.<|im_end|>"]
    assert_shifted(document)
    assert encoded.prompt == {
        "prompt": prompt,
        "question": "What is FSDP?",
        "reference": "It shards.\nAll of it.",
    }


def test_a_conversation_is_tokenized_as_a_whole(smollm2_tokenizer):
    row = chat("Hello  there", "an answer\n with spaces ", "x", "y")
    document, _ = encode_one(row, smollm2_tokenizer)
    text = smollm2_tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert document.input_ids.tolist() == smollm2_tokenizer.encode(text, add_special_tokens=False)


def test_an_answer_begins_with_a_token_of_its_own(smollm2_tokenizer):
    # The tokenizer would make one token of the prompt's line break and the answer's.
    document, encoded = encode_one(chat("Why?", "\n  Because."), smollm2_tokenizer)
    asked = smollm2_tokenizer.encode(encoded.prompt["prompt"], add_special_tokens=False)
    assert document.input_ids[: len(asked)].tolist() == asked
    assert targets(document, smollm2_tokenizer) == ["\n  Because.<|im_end|>"]


def test_what_follows_the_last_answer_is_left_out(smollm2_tokenizer):
    document, _ = encode_one(chat("One?", "First.", "Two?"), smollm2_tokenizer)
    assert "Two?" not in smollm2_tokenizer.decode(document.input_ids)


def test_answers_that_are_not_weighted_are_read_but_not_learned(smollm2_tokenizer):
    messages = [user("One?"), assistant("First.", weight=0), user("Two?"), assistant("Second.")]
    document, _ = encode_one({"messages": messages}, smollm2_tokenizer)
    assert "First." in smollm2_tokenizer.decode(document.input_ids)
    assert targets(document, smollm2_tokenizer) == ["Second.<|im_end|>"]


def test_rows_are_encoded_alone_and_together_alike(smollm2_tokenizer):
    rows = [chat(f"Question {n}?", "word " * n, "And?", f"\n{n}") for n in range(1, 8)]
    encoder = encoder_for(rows[:1], smollm2_tokenizer)
    alone = [encode([row], smollm2_tokenizer)[0] for row in rows]
    for one, other in zip(encoder.encode(as_rows(rows)), alone, strict=True):
        assert one.prompt == other.prompt
        assert np.array_equal(one.documents[0].input_ids, other.documents[0].input_ids)
        assert np.array_equal(one.documents[0].labels, other.documents[0].labels)


BEGINS = "{% for m in messages %}<|{{ m.role }}|> {{ m.content"
ENDS = " }} <|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE,
        # Llama 2's and Mistral's: no generation prompt of its own, the end is the only mark of the answer.
        "{% for m in messages %}{% if m.role == 'user' %}<|user|> {{ m.content }} <|assistant|>"
        "{% else %} {{ m.content }} <|end|>{% endif %}{% endfor %}",
        # One that trims, one that begins with a token of its own, one that adds a system message.
        f"{BEGINS} | trim{ENDS}",
        f"<|system|>{BEGINS}{ENDS}",
        f"{{% if messages[0].role != 'system' %}}<|system|> x <|end|>{{% endif %}}{BEGINS}{ENDS}",
        # Markers of what is generated: right, without the end of the turn, and around the question.
        "{% for m in messages %}<|{{ m.role }}|>{% generation %} {{ m.content }} <|end|>{% endgeneration %}\n"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{% for m in messages %}<|{{ m.role }}|> {% generation %}{{ m.content }}{% endgeneration %} <|end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    ],
)
def test_any_template_that_keeps_its_turns(template):
    tokenizer = tiny_tokenizer(template)
    document, encoded = encode_one(chat("a b", " c d", "e", "f g h "), tokenizer)
    assert targets(document, tokenizer) == ["c d <|end|>", "f g h <|end|>"]
    assert encoded.num_texts == 1


# As Qwen3 does with thoughts.
FORGETS = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content if loop.last or m.role == 'user' else 'x' }} <|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# As Mistral's later ones: the system message stands in the last question, and only if that is to be answered.
MOVES = (
    "{% set first = messages[0].role == 'system' %}{% for m in messages %}{% if m.role == 'user' %}<|user|>"
    "{% if first and loop.last %} {{ messages[0].content }}{% endif %} {{ m.content }} <|assistant|>"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }} <|end|>{% endif %}{% endfor %}"
)


def test_a_template_that_rewrites_earlier_turns_makes_a_document_of_each_answer():
    tokenizer = tiny_tokenizer(FORGETS)
    (encoded,) = encode([chat("a", "b", "c", "d")], tokenizer)
    assert encoded.num_texts == 2
    assert encoded.num_tokens == sum(len(document.input_ids) for document in encoded.documents)
    assert [tokenizer.decode(document.input_ids) for document in encoded.documents] == [
        "<|user|> a <|end|> <|assistant|> b <|end|>",
        "<|user|> a <|end|> <|assistant|> x <|end|> <|user|> c <|end|> <|assistant|> d <|end|>",
    ]
    assert [targets(document, tokenizer) for document in encoded.documents] == [["b <|end|>"], ["d <|end|>"]]
    assert encoded.prompt["prompt"].endswith("x <|end|><|user|> c <|end|><|assistant|>")


def test_a_template_that_moves_the_system_message_makes_a_document_of_each_answer():
    tokenizer = tiny_tokenizer(MOVES)
    (encoded,) = encode([chat("a", " b", "c", "d", system="s")], tokenizer)
    assert [tokenizer.decode(document.input_ids) for document in encoded.documents] == [
        "<|user|> s a <|assistant|> b <|end|>",
        "<|user|> a <|assistant|> b <|end|> <|user|> s c <|assistant|> d <|end|>",
    ]
    assert [targets(document, tokenizer) for document in encoded.documents] == [["b <|end|>"], ["d <|end|>"]]
    (encoded,) = encode([chat("a", "b", "c", "d")], tokenizer)
    assert encoded.num_texts == 1


def test_a_template_that_writes_the_date_gives_the_same_tokens_every_day():
    dated = "{{ strftime_now('%d %b %Y') }} "
    tokenizer = tiny_tokenizer(dated + CHAT_TEMPLATE)
    assert encode([chat("a", "b")], tokenizer)[0].prompt["prompt"].startswith("26 Jul 2024 <|user|>")


def test_answers_that_a_text_keeps_share_it():
    # Only the first answer is rewritten, once there is a second question.
    is_first = "messages | selectattr('role', 'eq', 'user') | list | length < 2"
    tokenizer = tiny_tokenizer(FORGETS.replace("loop.last or", f"loop.index0 != 1 or {is_first} or"))
    (encoded,) = encode([chat("a", "b", "c", "d", "e", "f")], tokenizer)
    assert [targets(document, tokenizer) for document in encoded.documents] == [
        ["b <|end|>"],
        ["d <|end|>", "f <|end|>"],
    ]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            "of the assistant",
        ),
        (
            FORGETS.replace("loop.last or ", ""),
            "leaves out the messages of the assistant, so there would be nothing",
        ),
        (
            "{% for m in messages %}{% if m.role != 'user' %}{{ m.content }}<|end|>{% endif %}{% endfor %}",
            "of the user",
        ),
        (
            CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|> t{% endif %}"),
            "in another way than its own",
        ),
        ("{{ raise_exception('No.') }}", r"cannot be used: a question and its answer is refused .*: No\."),
        ("{{ messages[0].nothing.more }}", "cannot be used: .* has no attribute"),
        ("{% for", "cannot be used"),
    ],
)
def test_a_template_that_could_teach_nothing_is_an_error_before_any_row(template, says):
    with pytest.raises(UserError, match=says):
        encoder_for([chat("a", "b")], tiny_tokenizer(template))


def test_a_template_whose_answers_begin_with_a_thought():
    thinks = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %} t {{ m.reasoning_content }} u"
        "{% endif %} {{ m.content }} <|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|> t {% endif %}"
    )
    tokenizer = tiny_tokenizer(thinks)
    document, encoded = encode_one({"messages": [user("a"), assistant("b", thinking="h")]}, tokenizer)
    assert targets(document, tokenizer) == ["h u b <|end|>"]
    assert encoded.prompt["prompt"] == "<|user|> a <|end|><|assistant|> t "
    rows = [{"messages": [user("a"), assistant("b", thinking="h")]}]
    assert "message 2 in another way than its own generation prompt" in problem(chat("a", "b"), tokenizer, rows)


def test_a_template_that_refuses_a_role():
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('No system, please') }}{% endif %}"
    tokenizer = tiny_tokenizer(refuses + CHAT_TEMPLATE)
    says = problem(chat("a", "b", system="c"), tokenizer)
    assert re.search(r"refused by the model's chat template .*system.*No system, please", says)


def test_a_template_that_leaves_out_a_role():
    tokenizer = tiny_tokenizer(
        CHAT_TEMPLATE.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
    )
    assert "has a message of the role system (message 1), which" in problem(chat("a", "b", system="c"), tokenizer)
    assert "has a message of the role system" in problem(chat("a", "b"), tokenizer, system_prompt="c")


def test_the_system_prompt():
    document, _ = encode_one(chat("a", "b"), tiny_tokenizer(), system_prompt="s y")
    assert tiny_tokenizer().decode(document.input_ids).startswith("<|system|> s y <|end|> <|user|>")


def test_a_conversation_that_the_assistant_begins():
    document, encoded = encode_one({"messages": [assistant("a"), user("b"), assistant("c")]}, tiny_tokenizer())
    assert targets(document, tiny_tokenizer()) == ["a <|end|>", "c <|end|>"]
    assert encoded.prompt["question"] == "b"


def test_a_tokenizer_without_a_template():
    with pytest.raises(UserError, match="has OpenAI messages, but the model's tokenizer has no chat template"):
        encoder_for([chat("a", "b")], tiny_tokenizer(None))


# Texts that no template renders


def test_a_tokenizer_without_an_end():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="no end-of-text token"):
        encoder_for([{"text": "a"}], tokenizer)


def test_a_completion_is_tokenized_apart_from_its_prompt(smollm2_tokenizer):
    row = {"prompt": "The answer is for", "completion": "ty-two"}
    document, encoded = encode_one(row, smollm2_tokenizer)
    left, right = (smollm2_tokenizer.encode(row[key]) for key in ("prompt", "completion"))
    assert smollm2_tokenizer.encode("The answer is forty-two") != left + right
    assert document.input_ids.tolist() == [*left, *right, smollm2_tokenizer.eos_token_id]
    assert targets(document, smollm2_tokenizer) == ["ty-two<|im_end|>"]
    assert_shifted(document)
    assert encoded.prompt == {
        "prompt": "The answer is for",
        "question": "The answer is for",
        "reference": "ty-two",
    }


def test_a_text_is_learned_whole(smollm2_tokenizer):
    document, encoded = encode_one({"text": "Once upon a time"}, smollm2_tokenizer)
    assert targets(document, smollm2_tokenizer) == [" upon a time<|im_end|>"]
    assert_shifted(document)
    assert encoded.prompt is None


def with_bos(tokenizer):
    """Makes a tokenizer begin each text with a token of its own, as Llama 3 does."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.add_special_tokens({"bos_token": "<|user|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", tokenizer.bos_token_id)]
    )
    return tokenizer


def test_texts_begin_with_the_token_that_the_model_expects():
    tokenizer = with_bos(tiny_tokenizer())
    text, _ = encode_one({"text": "a b"}, tokenizer)
    assert tokenizer.decode(text.input_ids) == "<|user|> a b <|end|>"
    document, encoded = encode_one({"prompt": "a", "completion": "b"}, tokenizer)
    assert tokenizer.decode(document.input_ids) == "<|user|> a b <|end|>"
    assert encoded.prompt["prompt"] == "<|user|>a"
    assert encoded.prompt["question"] == "a"


def test_a_system_text_stands_before_the_prompt():
    row = {"prompt": "a", "completion": "b"}
    for given, data in (
        ({"system": "s"}, {}),
        ({}, {"system_prompt": "s"}),
        ({"system": "s"}, {"system_prompt": "t"}),
    ):
        document, encoded = encode_one({**row, **given}, tiny_tokenizer(), **data)
        assert encoded.prompt["prompt"] == "s\n\na"
        assert targets(document, tiny_tokenizer()) == ["b <|end|>"]


def test_instructions_are_asked_through_the_chat_template_or_one_of_their_own():
    row, tokenizer = {"instruction": "a", "input": "b", "output": "c"}, tiny_tokenizer()
    document, encoded = encode_one(row, tokenizer)
    assert tokenizer.decode(document.input_ids) == "<|user|> a b <|end|> <|assistant|> c <|end|>"
    assert encoded.prompt["question"] == "a\n\nb"
    for template in ("q {instruction} i {input} a ", "q {instruction} {x} {instruction}"):
        row = {**row, "input": "b" if "{input}" in template else ""}
        document, encoded = encode_one(row, tokenizer, prompt_template=template)
        assert encoded.prompt["prompt"] == template.replace("{instruction}", "a").replace("{input}", "b")
        assert targets(document, tokenizer) == ["c <|end|>"]
    document, encoded = encode_one({**row, "system": "s"}, tiny_tokenizer(None))
    assert encoded.prompt["prompt"] == "s\n\na\n\n"
    assert targets(document, tokenizer) == ["c <|end|>"]
    assert "has an input, but data.prompt_template has no {input}" in problem(
        {**row, "input": "b"}, tokenizer, prompt_template="{instruction}"
    )
    with pytest.raises(UserError, match="has no place for the instruction"):
        encode_one(row, tokenizer, prompt_template="{input}")


def test_a_chat_that_is_rendered_already_is_taken_as_it_is_if_the_config_says_so(smollm2_tokenizer):
    rendered = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>"
    document, _ = encode_one({"text": rendered}, smollm2_tokenizer, special_tokens="tokens")
    # The text's own end is not written twice.
    assert document.input_ids.tolist() == smollm2_tokenizer.encode(rendered, add_special_tokens=False)
    prompt, completion = rendered[:-11], rendered[-11:]
    row = {"prompt": prompt, "completion": completion}
    document, encoded = encode_one(row, smollm2_tokenizer, special_tokens="tokens")
    assert targets(document, smollm2_tokenizer) == ["b<|im_end|>"]
    assert encoded.prompt["prompt"] == prompt


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": ""}, "has an empty text in 'text'"),
        ({"text": " \n\t"}, "has an empty text in 'text'"),
        ({"text": "a <|end|> b"}, "spells the special token '<|end|>' of the model"),
        ({"text": "\ud800"}, r"holds half of a surrogate pair (\ud800)"),
        ({"text": 3}, "has number in the column 'text', but its source has plain text"),
        ({"prompt": "a", "completion": " "}, "has an empty answer in 'completion'"),
        ({"prompt": "a", "completion": None}, "has null in the column 'completion'"),
        ({"prompt": "<|user|>", "completion": "a"}, "spells the special token '<|user|>'"),
        ({"prompt": "a", "completion": [assistant("b")]}, "has list in the column 'completion'"),
        (
            {"prompt": [user("a")], "completion": [assistant("b")]},
            "has prompts and completions as lists of messages",
        ),
        ({"instruction": "a", "output": ""}, "has an empty answer in 'output'"),
        ({"messages": [user("\udc00"), assistant("b")]}, r"holds half of a surrogate pair (\udc00)"),
        ({"messages": [system("a"), assistant("\ud83d")]}, r"holds half of a surrogate pair (\ud83d)"),
    ],
)
def test_rows_that_cannot_be_learned_are_named(row, says):
    usual = {"prompt": "a", "completion": "b", "instruction": "a", "output": "b", "text": "a", **chat("a", "b")}
    shape_row = {key: usual[key] for key in row}
    assert says in problem(row, tiny_tokenizer(), [shape_row])


def test_no_rows():
    for row in (chat("a", "b"), {"text": "a"}):
        assert encoder_for([row], tiny_tokenizer()).encode([]) == []


def test_good_rows_beside_malformed_ones_stay_in_their_places():
    rows = [chat("a", "b"), {"messages": []}, chat("c", "d"), {"text": "e"}]
    first, second, third, fourth = encode(rows, tiny_tokenizer(), rows[:1])
    assert [targets(one.documents[0], tiny_tokenizer()) for one in (first, third)] == [
        ["b <|end|>"],
        ["d <|end|>"],
    ]
    assert second.origin == "t.jsonl line 2"
    assert "has plain text, but its source has OpenAI messages" in fourth.problem


# Documents that are longer than a sample


def letters(count):
    return " ".join(chr(ord("a") + n % 26) for n in range(count))


def predicted(encoded, tokenizer):
    labels = [int(label) for document in encoded.documents for label in document.labels if label != -100]
    return " ".join(tokenizer.convert_ids_to_tokens(labels))


@pytest.mark.parametrize("long_documents", ["auto", "split"])
@pytest.mark.parametrize("num_words", [7, 8, 14, 15, 16, 40])
def test_a_long_text_is_split_and_each_of_its_tokens_predicted_once(num_words, long_documents):
    tokenizer = tiny_tokenizer()
    (encoded,) = encode(
        [{"text": letters(num_words)}], tokenizer, sequence_length=8, long_documents=long_documents
    )
    assert predicted(encoded, tokenizer) == f"{letters(num_words)[2:]} <|end|>"
    assert (encoded.num_tokens, encoded.num_unsupervised) == (num_words + 1, 0)
    assert encoded.num_long == (num_words + 1 > 8)
    for document in encoded.documents:
        assert 2 <= len(document.input_ids) <= 8
        assert_shifted(document)


@pytest.mark.parametrize(
    "row",
    [
        chat("a", letters(20)),
        {"prompt": "a b c", "completion": letters(20)},
        {"instruction": "a", "output": letters(20)},
        {"text": f"a {letters(20)}"},
    ],
    ids=lambda row: next(iter(row)),
)
def test_every_format_is_cut_split_or_refused(row):
    tokenizer = tiny_tokenizer()
    (whole,) = encode([row], tokenizer, sequence_length=64)
    (cut,) = encode([row], tokenizer, long_documents="cut", sequence_length=8)
    (split,) = encode([row], tokenizer, long_documents="split", sequence_length=8)
    assert cut.num_tokens == split.num_tokens == whole.num_tokens
    assert (cut.num_long, whole.num_long) == (1, 0)
    assert len(cut.documents) == 1 < len(split.documents)
    assert cut.documents[0].input_ids.tolist() == whole.documents[0].input_ids[:8].tolist()
    assert predicted(split, tokenizer) == predicted(whole, tokenizer) == f"{letters(20)} <|end|>"
    assert predicted(whole, tokenizer).startswith(predicted(cut, tokenizer))
    assert cut.prompt == split.prompt == whole.prompt
    with pytest.raises(UserError, match=rf"line 1 has {whole.num_tokens} tokens, but .* is 8 .* to cut or split"):
        encode([row], tokenizer, long_documents="refuse", sequence_length=8)
    assert len(encode([row], tokenizer, sequence_length=whole.num_tokens, long_documents="refuse")) == 1


def test_a_huge_document(smollm2_tokenizer):
    words = "The quick brown fox jumps over the lazy dog. " * 20_000
    (encoded,) = encode([{"text": words}], smollm2_tokenizer, sequence_length=512)
    assert encoded.num_tokens == 200_000 + 2
    assert sum((document.labels != -100).sum() for document in encoded.documents) == encoded.num_tokens - 1
    (encoded,) = encode([chat("Why?", words)], smollm2_tokenizer, sequence_length=512)
    assert [len(document.input_ids) for document in encoded.documents] == [512]


def test_pieces_without_a_supervised_token_are_dropped_and_counted():
    tokenizer = tiny_tokenizer()
    # 1 + 20 + 2 tokens before the first answer, and as many between the two.
    row = chat(letters(20), "y z", letters(20), "b")
    (encoded,) = encode([row], tokenizer, sequence_length=8, long_documents="split")
    assert encoded.num_unsupervised > 2
    assert all((document.labels != -100).any() for document in encoded.documents)
    assert predicted(encoded, tokenizer) == "y z <|end|> b <|end|>"


def test_a_long_answer_is_cut():
    tokenizer = tiny_tokenizer()
    long, short = encode([chat("a", "b c d e f g h i j"), chat("a", "b")], tokenizer, sequence_length=8)
    assert (long.num_tokens, short.num_tokens) == (14, 6)
    assert tokenizer.decode(long.documents[0].input_ids) == "<|user|> a <|end|> <|assistant|> b c d e"
    assert targets(long.documents[0], tokenizer) == ["b c d e"]
    assert_shifted(long.documents[0])


def test_an_answer_beyond_the_sample():
    row = chat("a b c d e f g h", "i")
    says = problem(row, tiny_tokenizer(), sequence_length=8)
    assert re.search(r"has no token to learn: its answer begins at token 12, beyond .* 8.* to split", says)
    assert len(encode([row], tiny_tokenizer(), sequence_length=8, long_documents="split")[0].documents) == 1


def test_an_answer_that_begins_with_the_last_token_of_the_sample_is_learned():
    document, _ = encode_one(chat("a b c d", "e f"), tiny_tokenizer(), sequence_length=8)
    assert (document.labels != -100).sum() == 1
