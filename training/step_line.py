"""A training step as one line of a log."""

from training.events import TrainStep


def format_step(step: TrainStep) -> str:
    """The step in about a hundred characters; what is not known, or tells nothing, is left out."""
    loss = f"loss {step.loss:.4f}"
    worst = f"{step.worst_rank_loss:.4f}" if step.worst_rank_loss is not None else ""
    # On one rank, and where all have the same, it is the loss again.
    if worst and worst != f"{step.loss:.4f}":
        loss += f" (worst {worst})"
    if step.skipped:
        loss += " (left out)"
    parts = [
        f"step {step.step}/{step.num_steps}",
        loss,
        f"grad norm {step.grad_norm:.3f}",
        f"lr {step.learning_rate:.2e}",
        f"{step.tokens_per_s:,.0f} tokens/s",
    ]
    if step.mfu is not None:
        parts.append(f"MFU {100 * step.mfu:.0f} %")
    parts.append(f"{step.memory_gib:.2f} GiB")
    return "  ".join(parts)
