"""Greedy answers to held-out prompts, shared out to all ranks."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import GenerationConfig

from training.errors import UserError

BATCH_SIZE = 16
"""Most prompts that are answered at once."""


@dataclass(frozen=True)
class HeldoutPrompt:
    """A held-out row as a question.

    Attributes:
        prompt: The text for the model, rendered up to where its answer begins.
        question: The same for people: the last message of the user.
        reference: The answer in the data.
        source: The data source it is from; empty where that is not recorded.
    """

    prompt: str
    question: str
    reference: str
    source: str = ""


@dataclass(frozen=True)
class PickedPrompt:
    """A prompt to answer, and what for.

    Attributes:
        prompt: The prompt.
        is_shown: In the report.
        is_scored: Against the reference.
    """

    prompt: HeldoutPrompt
    is_shown: bool
    is_scored: bool


def pick_prompts(dataset: Path, num_shown: int, num_scored: int) -> list[PickedPrompt]:
    """Some of a data set's held-out prompts, evenly spread, always the same ones, in their order."""
    with (dataset / "prompts.jsonl").open(encoding="utf-8") as lines:
        prompts = [HeldoutPrompt(**json.loads(line)) for line in lines]
    shown, scored = (_spread(len(prompts), number) for number in (num_shown, num_scored))
    return [PickedPrompt(prompts[i], i in shown, i in scored) for i in sorted(shown | scored)]


def _spread(count: int, number: int) -> set[int]:
    picked = min(number, count)
    return {i * count // picked for i in range(picked)}


def generate_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    max_new_tokens: int,
    device: torch.device,
    *,
    is_sharded: bool,
    on_batch: Callable[[int], None] = lambda num_done: None,
) -> list[str]:
    """Answer prompts greedily, up to an end of turn or `max_new_tokens` tokens. Collective.

    Batches are of like sizes, and every rank answers as many. With a sharded model one that has no prompt left
    answers an empty one, and each goes on until all ranks have ended theirs.

    Args:
        model: A transformers causal language model, whole on every rank or sharded over all.
        tokenizer: Its tokenizer.
        prompts: Rendered prompts; those longer than the model's context lose their beginning.
        max_new_tokens: Longest answer, in tokens.
        device: Where this rank computes.
        is_sharded: Whether the model is.
        on_batch: Called after each batch with the number of prompts that all ranks have answered.

    Returns:
        One answer for each prompt, without special tokens, on every rank.

    Raises:
        UserError: Answers of that length do not fit into the model's context.
    """
    if not prompts:
        return []
    room = check_room(model.config, max_new_tokens)
    encoded = [tokenizer.encode(prompt, add_special_tokens=False)[-room:] for prompt in prompts]
    stops = stop_tokens(model, tokenizer)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = _batches(encoded, world_size)
    mine: dict[int, str] = {}
    for first in range(0, len(batches), world_size):
        batch = batches[first + rank] if first + rank < len(batches) else []
        if batch or is_sharded:
            asked = [encoded[i] for i in batch] or [[]]
            new_tokens = _generate_batch(
                model, asked, stops, max_new_tokens, device, is_sharded and world_size > 1
            )
            answers = [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in new_tokens]
            mine |= dict(zip(batch, answers, strict=False))  # without a batch there is one answer to nothing
        on_batch(sum(map(len, batches[: first + world_size])))
    parts: list[dict[int, str]] = [{} for _ in range(world_size)]
    dist.all_gather_object(parts, mine)
    found = {i: answer for part in parts for i, answer in part.items()}
    return [found[i] for i in range(len(prompts))]


def _batches(prompts: Sequence[list[int]], world_size: int) -> list[list[int]]:
    """Indices of the prompts that are answered together: of like lengths, so that little is padded."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    rounds = math.ceil(len(order) / (BATCH_SIZE * world_size))
    count = min(rounds * world_size, len(order))
    return [order[len(order) * i // count : len(order) * (i + 1) // count] for i in range(count)]


def check_room(config: Any, max_new_tokens: int) -> int:
    """Make sure that answers fit into a model's context; returns the tokens that are left for a prompt.

    Args:
        config: The model's transformers config.
        max_new_tokens: Longest answer.

    Raises:
        UserError: They do not.
    """
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return sys.maxsize
    if max_new_tokens >= context:
        raise UserError(
            f"evaluation.max_new_tokens is {max_new_tokens}, but the model's context is {context} tokens, prompt "
            "included: choose less"
        )
    return int(context) - max_new_tokens


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


@torch.no_grad()
def _generate_batch(
    model: Any,
    batch: Sequence[list[int]],
    stops: list[int],
    max_new_tokens: int,
    device: torch.device,
    is_sharded: bool,
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
    # The model's own generation config may ask for sampling or penalties, which an argument would not take away.
    own, model.generation_config = model.generation_config, GenerationConfig()
    greedy = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=stops or None, pad_token_id=padding
    )
    output = model.generate(
        input_ids=input_ids, attention_mask=mask, generation_config=greedy, synced_gpus=is_sharded
    )
    model.generation_config = own
    return [_up_to_stop(tokens, stops) for tokens in output[:, width:].tolist()]


def _up_to_stop(tokens: list[int], stops: list[int]) -> list[int]:
    for position, token in enumerate(tokens):
        if token in stops:
            return tokens[:position]
    return tokens
