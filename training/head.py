"""The loss: summed cross-entropy, without ever holding the logits of more than a chunk of positions.

Naive cross-entropy over 8,192 tokens and 128,000 words takes 18 GiB for logits, their fp32 copy and gradients.
Here the head runs on supervised positions only, chunk by chunk, and each chunk's gradients are taken while its
logits are at hand.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from training.data import Batch

_CHUNK_BYTES = 2**26
"""Bytes of a chunk's logits in fp32, about; a chunk takes some three times as much while it is computed."""

_MIN_CHUNK = 256
"""Positions in a chunk at least; fewer would make narrow, slow matrix products."""


class SummedLoss:
    """Cross-entropy of a model's micro-batches in nats, summed over supervised positions.

    It is a sum, because only the caller knows how many supervised tokens the whole step has.

    Args:
        model: A transformers causal language model, sharded or not.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._head: nn.Module = model.get_output_embeddings()
        self._postprocess = _postprocessing(model.config)
        # Known from the first forward pass on: an architecture that does to its logits what is not known here
        # needs them whole.
        self._chunked: bool | None = None

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The loss of one micro-batch.

        Args:
            batch: The micro-batch; without supervised positions the loss is 0 and all gradients are 0.

        Returns:
            A scalar in fp32 (fp64 for an fp64 model).
        """
        hidden = self._known_hidden_states(batch)
        if hidden is None:
            return _cross_entropy(self._logits(batch), batch.targets)
        weight, bias = self._head.weight, getattr(self._head, "bias", None)
        if not torch.is_grad_enabled():  # which an autograd function cannot tell
            weight, bias = weight.detach(), bias if bias is None else bias.detach()
        loss: torch.Tensor = _ChunkedCrossEntropy.apply(hidden, weight, bias, batch.targets, self._postprocess)
        return loss

    @torch.no_grad()
    def of_tokens(self, batch: Batch) -> torch.Tensor:
        """The loss of each supervised token of a micro-batch, without gradients.

        Args:
            batch: The micro-batch.

        Returns:
            [supervised] in fp32 (fp64 for an fp64 model).
        """
        hidden = self._known_hidden_states(batch)
        if hidden is None:
            return _cross_entropy(self._logits(batch), batch.targets, "none")
        weight, bias = self._head.weight, getattr(self._head, "bias", None)
        losses = []
        for rows, targets in zip(
            hidden.split(chunk_size(len(weight))), batch.targets.split(chunk_size(len(weight))), strict=True
        ):
            logits = nn.functional.linear(rows, weight, bias)
            logits = logits if self._postprocess is None else self._postprocess(logits)
            losses.append(_cross_entropy(logits, targets, "none"))
        return torch.cat(losses)

    def _known_hidden_states(self, batch: Batch) -> torch.Tensor | None:
        """What goes into the head at supervised positions, [supervised, hidden]; None where logits are needed."""
        if self._chunked is False:
            return None
        hidden, logits = self._hidden_states(batch)
        if self._chunked is None:
            self._chunked = self._is_known(hidden, logits)
            hidden = hidden.index_select(0, batch.supervised)
        return hidden if self._chunked else None

    def _logits(self, batch: Batch) -> torch.Tensor:
        """Logits at supervised positions, [supervised, vocabulary]."""
        logits: torch.Tensor = self._model(**model_inputs(batch)).logits
        return logits.flatten(0, 1).index_select(0, batch.supervised)

    def _is_known(self, hidden: torch.Tensor, logits: torch.Tensor) -> bool:
        """Whether the model does to its head's output what is done here; it was done to `hidden` instead.

        The answer has to be the same on every rank, whatever numbers it has.
        """
        if self._postprocess is None:
            return logits is hidden
        with torch.no_grad():
            expected = self._postprocess(hidden)
        return expected.dtype == logits.dtype and torch.equal(logits.nan_to_num(), expected.nan_to_num())

    def _hidden_states(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """What goes into the head at supervised positions, [supervised, hidden], and what the model made of it.

        As long as it is not known what the model makes of it, at all positions: every rank has some of those.

        The forward pass is the whole model's, since FSDP gathers parameters by its modules' calls; only the head
        hands on what it is given.
        """
        seen: list[torch.Tensor] = []

        def hand_on(hidden: torch.Tensor) -> torch.Tensor:
            rows = hidden.flatten(0, 1)
            seen.append(rows.clone() if self._chunked is None else rows.index_select(0, batch.supervised))
            return seen[-1]

        self._head.forward = hand_on
        try:
            logits = self._model(**model_inputs(batch)).logits
        finally:
            del self._head.forward
        (hidden,) = seen
        return hidden, logits


def model_inputs(batch: Batch) -> dict[str, Any]:
    """A batch as the keyword arguments of a transformers model."""
    # No attention mask: with one, even of ones, transformers would let packed documents see each other.
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "cu_seq_lens_q": batch.document_bounds,
        "cu_seq_lens_k": batch.document_bounds,
        "max_length_q": batch.longest,
        "max_length_k": batch.longest,
        "use_cache": False,
    }


def chunk_size(vocabulary: int) -> int:
    """Positions whose logits are computed at once, for a vocabulary of this many tokens."""
    return max(_MIN_CHUNK, _CHUNK_BYTES // (4 * vocabulary))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Linear head and summed cross-entropy in one.

    Gradients are computed in the forward pass, for a loss of weight 1, and scaled in the backward pass: so logits
    are computed once, as in the naive form.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        postprocess: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> torch.Tensor:
        """See `SummedLoss`; hidden [positions, hidden], weight [vocabulary, hidden], targets [positions]."""
        exact = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = _Sum(weight) if need_weight else None
        grad_bias = _Sum(bias) if need_bias else None
        size = chunk_size(len(weight))
        for first in range(0, len(hidden), size):
            part = slice(first, first + size)
            logits = nn.functional.linear(hidden[part], weight, bias)
            grad_logits, chunk_loss = _chunk(logits, targets[part], postprocess, any(ctx.needs_input_grad))
            loss += chunk_loss
            del logits
            if grad_logits is None:
                continue
            if grad_hidden is not None:
                torch.mm(grad_logits, weight, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight.add_product(grad_logits.t(), hidden[part])
            if grad_bias is not None:
                grad_bias.add(grad_logits.sum(dim=0))
        ctx.save_for_backward(
            grad_hidden,
            None if grad_weight is None else grad_weight.value,
            None if grad_bias is None else grad_bias.value,
        )
        return loss

    @staticmethod
    def backward(ctx, weight: torch.Tensor):  # type: ignore[no-untyped-def]
        """Scale the gradients by the weight that the loss has in what is differentiated."""
        gradients = ctx.saved_tensors
        return (*(None if g is None else g.mul_(weight) for g in gradients), None, None)


def _chunk(
    logits: torch.Tensor,
    targets: torch.Tensor,
    postprocess: Callable[[torch.Tensor], torch.Tensor] | None,
    with_gradient: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Loss of a chunk, and its gradient with respect to the head's output, in that output's dtype."""
    if postprocess is None:
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_sum = exact.logsumexp(dim=1, keepdim=True)
        loss = (log_sum - exact.gather(1, targets[:, None])).sum()
        if not with_gradient:
            return None, loss
        # The gradient of cross-entropy: probabilities, less 1 at the target.
        gradient = exact.sub_(log_sum).exp_()
        gradient.scatter_add_(1, targets[:, None], gradient.new_full((len(targets), 1), -1.0))
        return gradient.to(logits.dtype), loss
    if not with_gradient:
        return None, _cross_entropy(postprocess(logits), targets)
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        loss = _cross_entropy(postprocess(leaf), targets)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, loss.detach()


class _Sum:
    """A sum of chunks: the first as it is; from the second on in fp32, so that it loses nothing to rounding."""

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like
        self._value: torch.Tensor | None = None

    def add(self, part: torch.Tensor) -> None:
        if self._value is None:
            self._value = part
        else:
            self._value = self._value.to(torch.promote_types(part.dtype, torch.float32)).add_(part)

    def add_product(self, left: torch.Tensor, right: torch.Tensor) -> None:
        is_exact = left.dtype == torch.promote_types(left.dtype, torch.float32)
        if self._value is not None and is_exact:
            self._value.addmm_(left, right)
        else:
            self.add(left @ right)

    @property
    def value(self) -> torch.Tensor:
        return torch.zeros_like(self._like) if self._value is None else self._value.to(self._like.dtype)


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(exact, targets, reduction=reduction)


def _postprocessing(config: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What an architecture does to the head's output: Gemma caps it, Cohere and Granite scale it."""
    if cap := getattr(config, "final_logit_softcapping", None):
        return lambda logits: torch.tanh(logits / cap) * cap
    if scale := getattr(config, "logit_scale", None):
        return lambda logits: logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        return lambda logits: logits / divisor
    return None
