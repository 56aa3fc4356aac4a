"""Greedy answers to held-out prompts."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from training.errors import UserError

_BATCH_SIZE = 8


@dataclass(frozen=True)
class HeldoutPrompt:
    """A held-out row as a question.

    Attributes:
        prompt: The text for the model, rendered up to where its answer begins.
        question: The same for people: the last message of the user.
        reference: The answer in the data.
    """

    prompt: str
    question: str
    reference: str


def pick_prompts(dataset: Path, num_prompts: int) -> list[HeldoutPrompt]:
    """Up to `num_prompts` of a data set's held-out prompts, evenly spread, always the same ones."""
    with (dataset / "prompts.jsonl").open(encoding="utf-8") as lines:
        prompts = [HeldoutPrompt(**json.loads(line)) for line in lines]
    num_picked = min(num_prompts, len(prompts))
    return [prompts[i * len(prompts) // num_picked] for i in range(num_picked)]


def generate_answers(
    model: Any, tokenizer: Any, prompts: Sequence[str], max_new_tokens: int, device: torch.device
) -> list[str]:
    """Answer prompts greedily, up to an end of turn or `max_new_tokens` tokens.

    Args:
        model: A transformers causal language model on `device`.
        tokenizer: Its tokenizer.
        prompts: Rendered prompts; those longer than the model's context lose their beginning.
        max_new_tokens: Longest answer, in tokens.
        device: Where the model is.

    Returns:
        One answer for each prompt, without special tokens.

    Raises:
        UserError: Answers of that length do not fit into the model's context.
    """
    room = _room_for_prompt(model, max_new_tokens)
    encoded = [tokenizer.encode(prompt, add_special_tokens=False)[-room:] for prompt in prompts]
    stops = stop_tokens(model, tokenizer)
    answers: list[str] = []
    for start in range(0, len(encoded), _BATCH_SIZE):
        batch = encoded[start : start + _BATCH_SIZE]
        new_tokens = _generate_batch(model, batch, stops, max_new_tokens, device)
        answers += [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in new_tokens]
    return answers


def stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer: the model's and the tokenizer's, and what its chat template ends a turn with.

    The last is needed for models whose end of text is not their end of turn and that do not say so in their
    generation config.
    """
    declared = model.generation_config.eos_token_id
    stops = set(declared if isinstance(declared, list) else [declared])
    stops.add(tokenizer.eos_token_id)
    if tokenizer.chat_template:
        content = "an answer"
        turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": content}]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False)
        after = tokenizer.encode(rendered.rpartition(content)[2].lstrip(), add_special_tokens=False)
        stops |= set(after[:1]) & set(tokenizer.all_special_ids)
    return sorted(token for token in stops if token is not None)


@torch.inference_mode()
def _generate_batch(
    model: Any, batch: Sequence[list[int]], stops: list[int], max_new_tokens: int, device: torch.device
) -> list[list[int]]:
    # Padded positions are masked, so any token does.
    padding = stops[0] if stops else 0
    width = max(1, *map(len, batch))
    # Padding is on the left, so that every answer begins right after its prompt. An empty prompt keeps one
    # token, or there would be nothing to continue.
    num_padding = [min(width - len(tokens), width - 1) for tokens in batch]
    input_ids = torch.tensor(
        [[padding] * (width - len(tokens)) + tokens for tokens in batch], dtype=torch.int64, device=device
    )
    mask = torch.tensor([[0] * n + [1] * (width - n) for n in num_padding], device=device)
    # The model's own generation config may ask for sampling or penalties.
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=stops or None, pad_token_id=padding
    )
    output = model.generate(input_ids=input_ids, attention_mask=mask)
    return [_up_to_stop(tokens, stops) for tokens in output[:, width:].tolist()]


def _up_to_stop(tokens: list[int], stops: list[int]) -> list[int]:
    for position, token in enumerate(tokens):
        if token in stops:
            return tokens[:position]
    return tokens


def _room_for_prompt(model: Any, max_new_tokens: int) -> int:
    context = getattr(model.config, "max_position_embeddings", None)
    if context is None:
        return sys.maxsize
    if max_new_tokens >= context:
        raise UserError(
            f"evaluation.max_new_tokens is {max_new_tokens}, but the model's context is {context} tokens, prompt "
            "included: choose less"
        )
    return int(context) - max_new_tokens
