import json

import pytest
import torch
from transformers import GenerationConfig

from training.errors import UserError
from training.measure import generate
from training.measure.generate import generate_answers, pick_prompts, stop_tokens

pytestmark = pytest.mark.usefixtures("alone")

CPU = torch.device("cpu")


def answers_of(model, tokenizer, prompts, max_new_tokens):
    return generate_answers(model, tokenizer, prompts, max_new_tokens, CPU, is_sharded=False)


PROMPTS = [
    "[user] w1 [end] [assistant]",
    "[user] w2 w3 w4 w5 w6 w7 w8 [end] [assistant]",
    "w9",
    *(f"[user] w{i} w{i + 1} [end] [assistant]" for i in range(10, 17)),
]


def greedy(model, tokenizer, prompt, max_new_tokens):
    """The formula's own words: take the likeliest token until one ends the answer."""
    stops = stop_tokens(model, tokenizer)
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    new = []
    while len(new) < max_new_tokens:
        with torch.no_grad():
            token = model(input_ids=torch.tensor([tokens + new])).logits[0, -1].argmax().item()
        if token in stops:
            break
        new.append(token)
    return tokenizer.decode(new, skip_special_tokens=True).strip()


def test_batch_equals_greedy_one_by_one(make_model, tokenizer):
    model = make_model().double()
    answers = answers_of(model, tokenizer, PROMPTS, 6)
    assert answers == [greedy(model, tokenizer, prompt, 6) for prompt in PROMPTS]
    assert len(set(answers)) > 1


def test_answer_holds_new_tokens_only(make_model, tokenizer):
    model = make_model()
    (answer,) = answers_of(model, tokenizer, ["[user] w1 w2 w3 [end] [assistant]"], 5)
    assert "w1 w2 w3" not in answer
    assert "[" not in answer
    assert len(answer.split()) <= 5


@pytest.mark.parametrize(
    ("num_prompts", "world_size", "sizes"),
    [
        (1, 1, [1]),
        (1, 4, [1]),
        (16, 1, [16]),
        (17, 1, [8, 9]),
        (20, 2, [10, 10]),
        (6, 4, [1, 2, 1, 2]),
        (64, 2, [16, 16, 16, 16]),
    ],
)
def test_ranks_have_batches_of_like_sizes(num_prompts, world_size, sizes):
    prompts = [[0] * (i * 7 % 11) for i in range(num_prompts)]
    batches = generate._batches(prompts, world_size)
    assert [len(batch) for batch in batches] == sizes
    lengths = [len(prompts[i]) for batch in batches for i in batch]
    assert lengths == sorted(lengths) and sorted(i for batch in batches for i in batch) == list(range(num_prompts))


def test_sampling_and_penalties_of_the_model_are_ignored(make_model, tokenizer):
    plain = answers_of(make_model(), tokenizer, PROMPTS, 6)
    model = make_model()
    model.generation_config = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0)
    assert answers_of(model, tokenizer, PROMPTS, 6) == plain


def test_end_of_turn_of_the_chat_template_stops(make_model, tokenizer):
    end, stop = tokenizer.convert_tokens_to_ids(["[end]", "[stop]"])
    model = make_model()
    assert stop_tokens(model, tokenizer) == sorted([end, stop])
    # A model that says [end] whatever comes before it, and does so at once.
    torch.nn.init.zeros_(model.lm_head.weight)
    torch.nn.init.ones_(model.model.norm.weight)
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([[3, 6, 2, 4]])).last_hidden_state[0, -1]
        model.lm_head.weight[end] = hidden
    assert answers_of(model, tokenizer, ["[user] w1 [end] [assistant]"], 8) == [""]


def test_empty_prompt_is_answered(make_model, tokenizer):
    assert len(answers_of(make_model(), tokenizer, ["", "w1 w2"], 3)) == 2


def test_long_prompt_loses_its_beginning(make_model, tokenizer):
    model = make_model()
    words = [f"w{i % 40}" for i in range(100)]
    kept = " ".join(words[-60:])
    assert answers_of(model, tokenizer, [" ".join(words)], 4) == answers_of(model, tokenizer, [kept], 4)


def test_nothing_is_asked_of_a_text(make_model, tokenizer):
    assert answers_of(make_model(), tokenizer, [], 64) == []


def test_answer_longer_than_the_context_is_refused(make_model, tokenizer):
    with pytest.raises(UserError, match=r"evaluation\.max_new_tokens is 64.*64 tokens"):
        answers_of(make_model(), tokenizer, ["w1"], 64)


@pytest.mark.parametrize(("wanted", "picked"), [(0, []), (2, [0, 5]), (4, [0, 2, 5, 7]), (99, list(range(10)))])
def test_prompts_are_spread_evenly(tmp_path, wanted, picked):
    lines = [{"prompt": "p", "question": f"{i} \u2028 q", "reference": "r", "source": "s"} for i in range(10)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (tmp_path / "prompts.jsonl").write_text(text, encoding="utf-8")
    for counts in ((wanted, 0), (0, wanted)):
        assert [int(p.prompt.question.split()[0]) for p in pick_prompts(tmp_path, *counts)] == picked
    both = pick_prompts(tmp_path, wanted, 3)
    assert [int(p.prompt.question.split()[0]) for p in both if p.is_shown] == picked
    assert [int(p.prompt.question.split()[0]) for p in both if p.is_scored] == [0, 3, 6]
    assert [p.prompt.source for p in both] == ["s"] * len(both)


def test_no_prompts(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("")
    assert pick_prompts(tmp_path, 6, 6) == []


def test_prompts_of_an_older_data_set_have_no_source(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "p", "question": "q", "reference": "r"}\n')
    (picked,) = pick_prompts(tmp_path, 1, 0)
    assert picked.prompt.source == ""
