"""Markdown for people: the model card of a version, and the summary of the step."""

from collections.abc import Sequence

from components.register_model.lineage import Lineage, Source
from components.register_model.results import Results
from training.config import RunConfig
from training.events import TrainStep


def model_card(run: str, results: Results, lineage: Lineage, steps: Sequence[TrainStep]) -> str:
    """Describe a version: base model, data, before and after, how it was trained."""
    config = results.config
    training, parallel = config.training, config.parallel
    samples = "samples" if config.data.packing == "none" else "packed samples"
    made = "trained from new weights" if config.model.init == "random" else "fine-tuned"
    lines = [
        f"`{config.model.name}` {made} on `{config.data.train}` by Shardline, in the run `{run}`.",
        "",
        f"- **Base model**: {_source(lineage.model)}",
        f"- **Data**: {_source(lineage.dataset)}, format {config.data.format}, {samples} of at most "
        f"{config.data.sequence_length} tokens",
        f"- **Training**: {_steps(steps)}{_adapters(config)}AdamW, peak learning rate {training.learning_rate:g} "
        f"({training.schedule}), global batch of {training.global_batch_size} {samples}, precision "
        f"{training.precision}, {parallel.strategy}, seed {training.seed}",
    ]
    if lineage.commit is not None:
        changed = " with local changes" if lineage.commit.dirty else ""
        lines.append(f"- **Code**: commit {lineage.commit.sha}{changed}")
    if results.is_adapter:
        lines += ["", *_how_to_load(lineage.model)]
    return "\n".join([*lines, "", *before_and_after(results)])


def before_and_after(results: Results) -> list[str]:
    """The two measurements as lines of a Markdown table."""
    rows = [
        ("loss (nats per token)", results.base_loss, results.tuned_loss),
        ("perplexity", results.base_perplexity, results.tuned_perplexity),
    ]
    return [
        f"| held-out, {results.num_supervised:,} tokens | base | tuned | change |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {base:.4g} | {tuned:.4g} | {tuned - base:+.4g} |" for name, base, tuned in rows),
    ]


def step_summary(headline: str, reasons: Sequence[str], results: Results, tracking: str, run_id: str) -> str:
    """The step's decision with its reasons.

    Args:
        headline: Version and alias.
        reasons: The gate's.
        results: The measurements.
        tracking: Tracking URI without credentials.
        run_id: The MLflow run.
    """
    lines = [
        f"**{headline}**",
        "",
        *before_and_after(results),
        "",
        *(f"- {reason}" for reason in reasons),
        "",
        f"MLflow run `{run_id}` at `{tracking}`",
    ]
    return "\n".join(lines) + "\n"


def _source(source: Source) -> str:
    revision = f" at revision `{source.revision}`" if source.revision else ""
    return f"`{source.name}`{revision} (fingerprint `{source.fingerprint}`)"


def _adapters(config: RunConfig) -> str:
    if config.training.method != "lora":
        return ""
    return f"LoRA adapters of rank {config.lora.rank} and alpha {config.lora.alpha:g}, "


def _how_to_load(base: Source) -> list[str]:
    """Lines that say how an adapter is used."""
    revision = f", revision={base.revision!r}" if base.revision else ""
    call = f"AutoModelForCausalLM.from_pretrained({base.name!r}{revision})"
    if base.name.endswith(".gguf"):
        # It was converted, and only the result is in the format that an adapter goes with.
        call = f"AutoModelForCausalLM.from_pretrained('STORE/models/{base.fingerprint}')"
    return [
        "This version is an adapter, which works only together with its base model:",
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f"base = {call}",
        "model = PeftModel.from_pretrained(base, 'FOLDER')  # of this version",
        "```",
    ]


def _steps(steps: Sequence[TrainStep]) -> str:
    return f"{steps[-1].step} steps to a training loss of {steps[-1].loss:.4g}, " if steps else ""
