import numpy as np
import pytest

from components.tokenize_dataset.documents import Encoder
from tests.doubles.models import CHAT_TEMPLATE, tiny_tokenizer
from training.config import DataConfig
from training.data_source import Row
from training.errors import UserError

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(*contents, system=None):
    """A row: user and assistant in turn."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return {"messages": messages}


def encode(rows, tokenizer, **data):
    data = {"train": "t.jsonl", "sequence_length": 1024, **data}
    rows = [Row(f"t.jsonl line {number}", row) for number, row in enumerate(rows, start=1)]
    return list(Encoder(DataConfig(**data), tokenizer).encode(rows))


def encode_one(row, tokenizer, **data):
    (encoded,) = encode([row], tokenizer, **data)
    (document,) = encoded.documents
    return document, encoded


def targets(document, tokenizer):
    """What the model is taught to say: runs of supervised tokens, decoded."""
    runs, current = [], []
    for label in [*document.labels, -100]:
        if label != -100:
            current.append(int(label))
        elif current:
            runs.append(tokenizer.decode(current))
            current = []
    return runs


def assert_shifted(document):
    ids, labels = document
    assert ids.dtype == labels.dtype == np.int32
    assert len(ids) == len(labels)
    assert labels[-1] == -100
    supervised = labels != -100
    assert (labels[supervised] == np.roll(ids, -1)[supervised]).all()


def test_smollm2_learns_the_answer_and_its_end(smollm2_tokenizer):
    document, encoded = encode_one(chat("What is FSDP?", "It shards.\nAll of it."), smollm2_tokenizer)
    assert smollm2_tokenizer.decode(document.input_ids) == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nWhat is FSDP?<|im_end|>\n"
        "<|im_start|>assistant\nIt shards.\nAll of it.<|im_end|>\n"
    )
    assert targets(document, smollm2_tokenizer) == ["It shards.\nAll of it.<|im_end|>"]
    assert_shifted(document)
    assert encoded.prompt == {
        "prompt": f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nWhat is FSDP?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "question": "What is FSDP?",
        "reference": "It shards.\nAll of it.",
    }


def test_the_answer_is_predicted_from_just_what_the_model_is_prompted_with(smollm2_tokenizer):
    document, encoded = encode_one(chat("Why?", "Because of 日本 🙂."), smollm2_tokenizer)
    prompted = smollm2_tokenizer.encode(encoded.prompt["prompt"], add_special_tokens=False)
    first = int(np.argmax(document.labels != -100))
    assert document.input_ids[: first + 1].tolist() == prompted
    assert targets(document, smollm2_tokenizer) == ["Because of 日本 🙂.<|im_end|>"]


def test_every_turn_of_the_assistant_is_learned(smollm2_tokenizer):
    row = chat("One?", "First.", "Two?", "Second.", "Three?", "Third.", system="Be brief.")
    document, encoded = encode_one(row, smollm2_tokenizer)
    assert targets(document, smollm2_tokenizer) == ["First.<|im_end|>", "Second.<|im_end|>", "Third.<|im_end|>"]
    assert smollm2_tokenizer.decode(document.input_ids).startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert encoded.prompt["prompt"].endswith(
        "Second.<|im_end|>\n<|im_start|>user\nThree?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert encoded.prompt["question"] == "Three?"


def test_the_text_is_tokenized_as_a_whole(smollm2_tokenizer):
    row = chat("Hello  there", "  an answer\n with spaces ", "x", "y")
    document, _ = encode_one(row, smollm2_tokenizer)
    text = smollm2_tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert document.input_ids.tolist() == smollm2_tokenizer.encode(text, add_special_tokens=False)


def test_what_follows_the_last_answer_is_left_out(smollm2_tokenizer):
    document, _ = encode_one(chat("One?", "First.", "Two?"), smollm2_tokenizer)
    assert "Two?" not in smollm2_tokenizer.decode(document.input_ids)


def test_rows_are_encoded_alone_and_in_batches_alike(smollm2_tokenizer, monkeypatch):
    rows = [chat(f"Question {n}?", "word " * n) for n in range(1, 8)]
    whole = encode(rows, smollm2_tokenizer)
    monkeypatch.setattr("components.tokenize_dataset.documents._BATCH_ROWS", 3)
    for one, other in zip(encode(rows, smollm2_tokenizer), whole, strict=True):
        assert one.prompt == other.prompt
        assert np.array_equal(one.documents[0].labels, other.documents[0].labels)


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE,
        # Llama 2 and Mistral: no generation prompt of its own, the end is the only mark of the answer.
        "{% for m in messages %}{% if m.role == 'user' %}<|user|> {{ m.content }} <|assistant|>"
        "{% else %} {{ m.content }} <|end|>{% endif %}{% endfor %}",
        # A template that trims.
        "{% for m in messages %}<|{{ m.role }}|> {{ m.content | trim }} <|end|>\n\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|> {% endif %}",
    ],
)
def test_any_template_that_keeps_its_turns(template):
    tokenizer = tiny_tokenizer(template)
    document, _ = encode_one(chat("a b", " c d", "e", "f g h "), tokenizer)
    assert targets(document, tokenizer) == ["c d <|end|>", "f g h <|end|>"]


def test_a_template_that_rewrites_earlier_turns():
    forgets = (
        "{% for m in messages %}<|{{ m.role }}|> "
        "{{ m.content if loop.last or m.role == 'user' else 'x' }} <|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer = tiny_tokenizer(forgets)
    assert targets(encode_one(chat("a", "b"), tokenizer)[0], tokenizer) == ["b <|end|>"]
    with pytest.raises(UserError, match=r"t\.jsonl line 1: the chat template rewrites earlier turns \(message 2"):
        encode_one(chat("a", "b", "c", "d"), tokenizer)


def test_a_template_that_prompts_otherwise_than_it_renders():
    tokenizer = tiny_tokenizer(CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|> t{% endif %}"))
    with pytest.raises(UserError, match="in another way than its own generation prompt"):
        encode_one(chat("a", "b"), tokenizer)


def test_a_template_that_refuses_a_role():
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('No system, please') }}{% endif %}"
    tokenizer = tiny_tokenizer(refuses + CHAT_TEMPLATE)
    with pytest.raises(UserError, match=r"line 1: .*refuses these messages.*system.*No system, please"):
        encode_one(chat("a", "b", system="c"), tokenizer)


def test_a_tokenizer_without_a_template():
    with pytest.raises(UserError, match="has no chat template"):
        encode([], tiny_tokenizer(None))


def test_a_tokenizer_without_an_end():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="no end-of-text token"):
        encode([], tokenizer, format="text")


def test_a_completion_is_tokenized_apart_from_its_prompt(smollm2_tokenizer):
    row = {"prompt": "The answer is for", "completion": "ty-two"}
    document, encoded = encode_one(row, smollm2_tokenizer, format="prompt_completion")
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
    document, encoded = encode_one({"text": "Once upon a time"}, smollm2_tokenizer, format="text")
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
    text, _ = encode_one({"text": "a b"}, tokenizer, format="text")
    assert tokenizer.decode(text.input_ids) == "<|user|> a b <|end|>"
    row = {"prompt": "a", "completion": "b"}
    document, encoded = encode_one(row, tokenizer, format="prompt_completion")
    assert tokenizer.decode(document.input_ids) == "<|user|> a b <|end|>"
    assert encoded.prompt["prompt"] == "<|user|>a"
    assert encoded.prompt["question"] == "a"


def letters(count):
    return " ".join(chr(ord("a") + n % 26) for n in range(count))


def predicted(encoded, tokenizer):
    labels = [int(label) for document in encoded.documents for label in document.labels if label != -100]
    return " ".join(tokenizer.convert_ids_to_tokens(labels))


@pytest.mark.parametrize("long_documents", ["auto", "split"])
@pytest.mark.parametrize("num_words", [7, 8, 14, 15, 16, 40])
def test_a_long_text_is_split_and_each_of_its_tokens_predicted_once(num_words, long_documents):
    tokenizer = tiny_tokenizer()
    options = {"format": "text", "sequence_length": 8, "long_documents": long_documents}
    (encoded,) = encode([{"text": letters(num_words)}], tokenizer, **options)
    assert predicted(encoded, tokenizer) == f"{letters(num_words)[2:]} <|end|>"
    assert (encoded.num_tokens, encoded.num_unsupervised) == (num_words + 1, 0)
    for document in encoded.documents:
        assert 2 <= len(document.input_ids) <= 8
        assert_shifted(document)


@pytest.mark.parametrize(
    "row",
    [
        {"format": "chat", **chat("a", letters(20))},
        {"format": "prompt_completion", "prompt": "a b c", "completion": letters(20)},
        {"format": "text", "text": f"a {letters(20)}"},
    ],
    ids=lambda row: row["format"],
)
def test_every_format_is_cut_split_or_refused(row):
    tokenizer = tiny_tokenizer()
    options = {"format": row["format"], "sequence_length": 8}
    (whole,) = encode([row], tokenizer, format=row["format"], sequence_length=64)
    (cut,) = encode([row], tokenizer, long_documents="cut", **options)
    (split,) = encode([row], tokenizer, long_documents="split", **options)
    assert cut.num_tokens == split.num_tokens == whole.num_tokens
    assert len(cut.documents) == 1 < len(split.documents)
    assert cut.documents[0].input_ids.tolist() == whole.documents[0].input_ids[:8].tolist()
    assert predicted(split, tokenizer) == predicted(whole, tokenizer) == f"{letters(20)} <|end|>"
    assert predicted(whole, tokenizer).startswith(predicted(cut, tokenizer))
    assert cut.prompt == split.prompt == whole.prompt
    short = {**row, "text": "a", "completion": "b", **chat("a", "b")}
    with pytest.raises(UserError, match=rf"line 2 has {whole.num_tokens} tokens, but .* is 8 .* to cut or split"):
        encode([short, row], tokenizer, long_documents="refuse", **options)
    just_fits = {**options, "sequence_length": whole.num_tokens, "long_documents": "refuse"}
    assert len(encode([row], tokenizer, **just_fits)) == 1


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
    rows = [chat("a", "b c d e f g h i j"), chat("a", "b")]
    long, short = encode(rows, tokenizer, sequence_length=8)
    assert (long.num_tokens, short.num_tokens) == (14, 6)
    assert tokenizer.decode(long.documents[0].input_ids) == "<|user|> a <|end|> <|assistant|> b c d e"
    assert targets(long.documents[0], tokenizer) == ["b c d e"]
    assert_shifted(long.documents[0])


def test_an_answer_beyond_the_sample():
    rows = [chat("a", "b"), chat("a b c d e f g h", "i")]
    with pytest.raises(
        UserError, match=r"line 2 has no token to learn: its answer begins at token 12, beyond .* 8.* to split"
    ):
        encode(rows, tiny_tokenizer(), sequence_length=8)
    assert len(encode(rows, tiny_tokenizer(), sequence_length=8, long_documents="split")) == 2


def test_an_answer_that_begins_with_the_last_token_of_the_sample_is_learned():
    document, _ = encode_one(chat("a b c d", "e f"), tiny_tokenizer(), sequence_length=8)
    assert (document.labels != -100).sum() == 1


def test_an_empty_text():
    with pytest.raises(UserError, match="line 1 has no token to learn"):
        encode([{"text": ""}], tiny_tokenizer(), format="text")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"message": []},
            r"no column 'messages' \(it has: message\): set data\.messages_column .* perhaps message",
        ),
        ({}, r"no column 'messages' \(it has: none\)"),
        ({"messages": "a"}, r"the column 'messages' is of type str, but a list"),
        ({"messages": None}, r"the column 'messages' is missing, but a list"),
        ({"messages": []}, r"no message of the role 'assistant'"),
        ({"messages": [{"role": "user", "content": "a"}]}, r"no message of the role 'assistant'"),
        ({"messages": ["a"]}, r"message 1 is of type str, but an object with role and content"),
        ({"messages": [{"role": "tool", "content": "a"}]}, r"message 1 has the role 'tool': the roles are system"),
        ({"messages": [{"from": "human", "value": "a"}]}, r"message 1 has the role None"),
        ({"messages": [{"role": "user", "content": [1]}]}, r"message 1: its content is of type list, but text"),
        ({"messages": [{"role": "assistant", "content": None}]}, r"message 1: its content is missing"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, r"its content holds half of a surrogate pair"),
    ],
)
def test_broken_chats(row, says):
    with pytest.raises(UserError, match=f"t.jsonl line 2.*{says}"):
        encode([chat("a", "b"), row], tiny_tokenizer())


@pytest.mark.parametrize(
    ("data_format", "row", "says"),
    [
        ("text", {"content": "a"}, r"no column 'text' \(it has: content\): set data\.text_column"),
        ("text", {"text": 3}, r"the column 'text' is of type int, but text is needed\. Set data\.text_column"),
        ("prompt_completion", {"prompt": "a"}, r"no column 'completion' .* set data\.completion_column"),
        ("prompt_completion", {"prompt": ["a"], "completion": "b"}, r"the column 'prompt' is of type list"),
    ],
)
def test_broken_columns(data_format, row, says):
    with pytest.raises(UserError, match=f"t.jsonl line 1.*{says}"):
        encode([row], tiny_tokenizer(), format=data_format)


def test_columns_can_have_other_names():
    tokenizer = tiny_tokenizer()
    row = {"q": "a", "a": "b"}
    document, _ = encode_one(row, tokenizer, format="prompt_completion", prompt_column="q", completion_column="a")
    assert tokenizer.decode(document.input_ids) == "a b <|end|>"
