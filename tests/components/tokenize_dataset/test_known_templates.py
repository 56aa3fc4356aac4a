"""The very tokens that are supervised, with templates built as those of well-known families of models are."""

import functools
import re

import pytest

from tests.components.tokenize_dataset.encoding import (
    assistant,
    chat,
    encode,
    encoder_for,
    marked,
    targets,
    user,
)
from training.errors import UserError
from training.sources.rows import Malformed

# Always a system message, with the date; contents trimmed; one call at a time, results from "ipython".
LLAMA3 = (
    "{{ bos_token }}{% set first = messages[0].role == 'system' %}<|start_header_id|>system<|end_header_id|>\n\n"
    "{{ strftime_now('%d %b %Y') }}\n\n{% if first %}{{ messages[0].content | trim }}{% endif %}<|eot_id|>"
    "{% for m in messages[1 if first else 0:] %}"
    "<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{% if loop.first and tools %}{% for tool in tools %}{{ tool | tojson }}\n\n{% endfor %}{% endif %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('One call at a time') }}{% endif %}"
    '{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# The assistant is "model"; the system message stands in the first question; strictly in turn.
GEMMA = (
    "{{ bos_token }}{% set first = messages[0].role == 'system' %}{% for m in messages[1 if first else 0:] %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Not in turn') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if loop.first and first %}{{ messages[0].content }}\n\n{% endif %}{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# The end of the question is the generation prompt; the system message and the tools stand in the last question.
MISTRAL3 = (
    "{{ bos_token }}{% set first = messages[0].role == 'system' %}{% set said = messages[1 if first else 0:] %}"
    "{% for m in said %}"
    "{% set last = said[loop.index0:] | selectattr('role', 'eq', 'user') | list | length == 1 %}"
    "{% if m.role == 'user' %}{% if tools and last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}[INST] {% if first and last %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}{{ call.function | tojson }}"
    "{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Its marks are spelled, not tokens, and the generation prompt lacks the line break that answers begin with.
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}<|assistant|>{% endif %}{% endfor %}"
)
# A system message of its own, which the row's takes the place of; results of tools in a question.
QWEN25 = (
    "{% set first = messages[0].role == 'system' %}<|im_start|>system\n"
    "{{ messages[0].content if first else 'Help.' }}{% if tools %}\n<tools>{% for tool in tools %}\n"
    "{{ tool | tojson }}{% endfor %}\n</tools>{% endif %}<|im_end|>\n{% for m in messages[1 if first else 0:] %}"
    "<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}"
    "{% endif %}{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The prompt opens a thought; of an answer only what follows its thought is kept.
DEEPSEEK_R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<User>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<Assistant>{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<Assistant><think>\n{% endif %}"
)
# Nothing ends an answer.
ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
    "{% elif m.role == 'assistant' %}### Response:\n{{ m.content }}\n\n{% else %}{{ m.content }}\n\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}"
)

SPECIAL = {
    LLAMA3: ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    GEMMA: ("<bos>", "<end_of_turn>", "<start_of_turn>"),
    MISTRAL3: ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ZEPHYR: ("<s>", "</s>"),
    QWEN25: ("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
    DEEPSEEK_R1: ("<bos>", "<eos>", "<User>", "<Assistant>"),
    ALPACA: ("<s>", "</s>"),
}
"""What is a token of each: the first and the last of a text, and its marks."""


@pytest.fixture(scope="module")
def given(real_tokenizer):
    """GPT-2's tokenizer with a template, and the special tokens that its models have."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    real = real_tokenizer("gpt2").backend_tokenizer.to_str()

    @functools.cache
    def make(template):
        begin, end, *marks = SPECIAL[template]
        made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(real), bos_token=begin, eos_token=end)
        made.add_special_tokens({"additional_special_tokens": marks})
        made.chat_template = template
        return made

    return make


def documents(row, tokenizer):
    (encoded,) = encode([row], tokenizer)
    return encoded, [marked(document, tokenizer) for document in encoded.documents]


CALL = [{"id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}}]
CALLED = {
    "messages": [
        user("1+1?"),
        assistant(None, tool_calls=CALL),
        {"role": "tool", "content": "2"},
        assistant("Two."),
    ],
    "tools": [{"type": "function", "function": {"name": "add"}}],
}
TOOL = '{" type ": Ġ" function ", Ġ" function ": Ġ{" name ": Ġ" add " }}'
TURNS = chat("One?", "First.", "Two?", "Second.")
BRIEF = chat("Why?", " Because. ", system="Be brief.")

LLAMA3_BEGINS = "<|begin_of_text|> <|start_header_id|> system <|end_header_id|> Ċ Ċ 26 ĠJul Ġ2024 "
LLAMA3_SAYS = "<|start_header_id|> {} <|end_header_id|> Ċ Ċ "
# GPT-2 would cut the line breaks before a word, but there is none yet when the model is asked.
LLAMA3_ANSWERS = "<|start_header_id|> ass istant <|end_header_id|> ĊĊ "
GEMMA_ASKS = "<start_of_turn> user Ċ {}? <end_of_turn> Ċ <start_of_turn> model Ċ "
ZEPHYR_ASKS = "< | user | > Ċ {} ? </s> Ċ < | ass istant | > "
QWEN25_ASKS = "<|im_start|> user Ċ {} <|im_end|> Ċ <|im_start|> ass istant Ċ "
ALPACA_ASKS = "### ĠInstruction : Ċ {} ? Ċ Ċ ### ĠResponse : Ċ "
NO_THOUGHT = "[Ċ] [</] [think] [>] [Ċ] [Ċ] "


def brackets(tokens):
    return " ".join(f"[{token}]" for token in tokens.split())


@pytest.mark.parametrize(
    ("template", "row", "expected"),
    [
        (
            LLAMA3,
            TURNS,
            [
                f"{LLAMA3_BEGINS}ĊĊ <|eot_id|> {LLAMA3_SAYS.format('user')}One ? <|eot_id|> {LLAMA3_ANSWERS}"
                f"[First] [.] [<|eot_id|>] {LLAMA3_SAYS.format('user')}Two ? <|eot_id|> {LLAMA3_ANSWERS}"
                "[Second] [.] [<|eot_id|>]"
            ],
        ),
        (
            LLAMA3,
            BRIEF,
            [
                f"{LLAMA3_BEGINS}Ċ Ċ Be Ġbrief . <|eot_id|> {LLAMA3_SAYS.format('user')}Why ? <|eot_id|> "
                f"{LLAMA3_ANSWERS}[Because] [.] [<|eot_id|>]"
            ],
        ),
        (
            LLAMA3,
            CALLED,
            [
                f"{LLAMA3_BEGINS}ĊĊ <|eot_id|> {LLAMA3_SAYS.format('user')}{TOOL} Ċ Ċ 1 + 1 ? <|eot_id|> "
                + LLAMA3_ANSWERS
                + brackets('{" name ": Ġ" add ", Ġ" param eters ": Ġ{" a ": Ġ1 , Ġ" b ": Ġnull }} <|eot_id|>')
                + f" {LLAMA3_SAYS.format('ip ython')}2 <|eot_id|> {LLAMA3_ANSWERS}[Two] [.] [<|eot_id|>]"
            ],
        ),
        (
            GEMMA,
            TURNS,
            [
                f"<bos> {GEMMA_ASKS.format('One ')}[First] [.] [<end_of_turn>] Ċ "
                f"{GEMMA_ASKS.format('Two ')}[Second] [.] [<end_of_turn>] Ċ"
            ],
        ),
        (GEMMA, BRIEF, [f"<bos> {GEMMA_ASKS.format('Be Ġbrief . Ċ Ċ Why ')}[Because] [.] [<end_of_turn>] Ċ"]),
        (
            MISTRAL3,
            TURNS,
            [
                "<s> [INST] ĠOne ? [/INST] [ĠFirst] [.] [</s>] [INST] ĠTwo ? [/INST] [ĠSecond] [.] [</s>]",
            ],
        ),
        # Each answer as it is asked for: with the system message in the last question.
        (
            MISTRAL3,
            chat("One?", "First.", "Two?", "Second.", system="Be brief."),
            [
                "<s> [INST] ĠBe Ġbrief . Ċ Ċ One ? [/INST] [ĠFirst] [.] [</s>]",
                "<s> [INST] ĠOne ? [/INST] ĠFirst . </s> [INST] ĠBe Ġbrief . Ċ Ċ Two ? [/INST] "
                "[ĠSecond] [.] [</s>]",
            ],
        ),
        (
            MISTRAL3,
            CALLED,
            [
                f"<s> [ AV A IL ABLE _ TO OL S ] Ġ[ {TOOL} ][/ AV A IL ABLE _ TO OL S ] [INST] Ġ1 + 1 ? [/INST] "
                + brackets(
                    '[TOOL_CALLS] Ġ[ {" name ": Ġ" add ", Ġ" arg uments ": Ġ{" a ": Ġ1 , Ġ" b ": Ġnull }} ] </s>'
                )
                + " [TOOL_RESULTS] Ġ2 [/TOOL_RESULTS] [ĠTwo] [.] [</s>]"
            ],
        ),
        # The line break that its generation prompt lacks is learned.
        (
            ZEPHYR,
            TURNS,
            [
                f"{ZEPHYR_ASKS.format('One')}[Ċ] [First] [.] [</s>] Ċ "
                f"{ZEPHYR_ASKS.format('Two')}[Ċ] [Second] [.] [</s>] Ċ"
            ],
        ),
        (
            ZEPHYR,
            BRIEF,
            [f"< | system | > Ċ Be Ġbrief . </s> Ċ {ZEPHYR_ASKS.format('Why')}[Ċ] [ĠBecause] [.] [Ġ] [</s>] Ċ"],
        ),
        (
            QWEN25,
            TURNS,
            [
                f"<|im_start|> system Ċ Help . <|im_end|> Ċ {QWEN25_ASKS.format('One ?')}"
                f"[First] [.] [<|im_end|>] Ċ {QWEN25_ASKS.format('Two ?')}[Second] [.] [<|im_end|>] Ċ"
            ],
        ),
        (
            QWEN25,
            BRIEF,
            [
                f"<|im_start|> system Ċ Be Ġbrief . <|im_end|> Ċ {QWEN25_ASKS.format('Why ?')}"
                "[ĠBecause] [.] [Ġ] [<|im_end|>] Ċ"
            ],
        ),
        (
            QWEN25,
            CALLED,
            [
                f"<|im_start|> system Ċ Help .< tools > {TOOL} </ tools > <|im_end|> Ċ "
                + QWEN25_ASKS.format("1 + 1 ?")
                + brackets(
                    '< tool _ call > Ċ {" name ": Ġ" add ", Ġ" arg uments ": Ġ{" a ": Ġ1 , Ġ" b ": Ġnull }} Ċ '
                    "</ tool _ call > <|im_end|>"
                )
                + " Ċ "
                + QWEN25_ASKS.format("< tool _ response > Ċ 2 Ċ </ tool _ response >")
                + "[Two] [.] [<|im_end|>] Ċ"
            ],
        ),
        (
            DEEPSEEK_R1,
            TURNS,
            [
                f"<bos> <User> One ? <Assistant> < think > Ċ {NO_THOUGHT}[First] [.] [<eos>]",
                "<bos> <User> One ? <Assistant> First . <eos> <User> Two ? <Assistant> < think > Ċ "
                f"{NO_THOUGHT}[Second] [.] [<eos>]",
            ],
        ),
        *(
            (
                DEEPSEEK_R1,
                {"messages": [user("Why?"), message]},
                [
                    "<bos> <User> Why ? <Assistant> < think > Ċ [Well] [.] [Ċ] [</] [think] [>] [Ċ] [Ċ] "
                    "[Because] [.] [<eos>]"
                ],
            )
            for message in (
                assistant("<think>\nWell.\n</think>\n\nBecause."),
                assistant("Well.</think>Because."),
                assistant("Because.", reasoning_content="Well."),
            )
        ),
        # An answer of an earlier turn has no end when the model is asked, so none here either.
        (
            ALPACA,
            TURNS,
            [
                f"{ALPACA_ASKS.format('One')}[First] [.] [</s>]",
                f"{ALPACA_ASKS.format('One')}First . Ċ Ċ {ALPACA_ASKS.format('Two')}[Second] [.] [</s>]",
            ],
        ),
    ],
)
def test_the_very_tokens_that_are_supervised(given, template, row, expected):
    tokenizer = given(template)
    encoded, shown = documents(row, tokenizer)
    assert shown == expected
    last = encoded.documents[-1]
    if len(targets(last, tokenizer)) == 1:
        asked = tokenizer.encode(encoded.prompt["prompt"], add_special_tokens=False)
        assert last.input_ids[: len(asked)].tolist() == asked


@pytest.mark.parametrize(
    ("template", "row", "says"),
    [
        (GEMMA, CALLED, "is refused by the model's chat template .* Not in turn"),
        (LLAMA3, {"messages": [user("a"), assistant(None, tool_calls=CALL * 2)]}, "One call at a time"),
        (ZEPHYR, CALLED, "has a tool call in message 2, which"),
        (DEEPSEEK_R1, CALLED, "has a tool call in message 2, which"),
        (ALPACA, {"messages": [user("a"), assistant("b", thinking="c")]}, "has a thought in message 2, which"),
    ],
)
def test_what_a_template_cannot_write_is_told(given, template, row, says):
    (malformed,) = encode([row], given(template))
    assert isinstance(malformed, Malformed)
    assert re.search(says, malformed.problem)


def test_nothing_ends_an_answer_and_the_tokenizer_has_no_end(given):
    tokenizer = given.__wrapped__(ALPACA)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="its tokenizer has no end-of-text token, so the model could not learn to"):
        encoder_for([TURNS], tokenizer)


@pytest.mark.parametrize("template", SPECIAL)
def test_a_spelled_mark_is_text(given, template):
    tokenizer = given(template)
    plain, _ = documents(chat("One x", "Two x."), tokenizer)
    for mark in SPECIAL[template]:
        (encoded,) = encode([chat(f"One {mark}", f"Two {mark}.")], tokenizer)
        (said,), (plainly,) = (targets(each.documents[0], tokenizer) for each in (encoded, plain))
        assert said == plainly.replace("x", mark)
        number = tokenizer.convert_tokens_to_ids(mark)
        count, plain_count = ((each.documents[0].input_ids == number).sum() for each in (encoded, plain))
        assert count == plain_count
