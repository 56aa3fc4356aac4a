"""The sections `training`, `lora` and `parallel`: what the ranks compute, and how they share it."""

from typing import Any, Literal

from pydantic import Field, field_validator

from training.config.section import Fraction, Section

Strategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"]


class TrainingConfig(Section):
    """How the optimizer steps."""

    method: Literal["full", "lora"] = "full"
    """`full` trains every parameter; `lora` freezes them and trains low-rank adapters beside them (section
    `lora`)."""

    epochs: float = Field(default=1.0, gt=0)
    """Passes over the training samples; ignored when `max_steps` is set."""

    max_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps. Unset: from `epochs`."""

    global_batch_size: int = Field(default=8, ge=1)
    """Packed samples per optimizer step, over all ranks. It stays constant whatever the number of GPUs."""

    micro_batch_size: int = Field(default=1, ge=1)
    """Packed samples per forward pass on one rank. The rest of the global batch is gradient accumulation."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """Peak learning rate of AdamW."""

    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Learning rate after warm-up: to `min_lr_ratio` of the peak by cosine or line, or constant."""

    warmup_ratio: Fraction = 0.03
    """Share of all steps over which the learning rate rises linearly from zero."""

    min_lr_ratio: Fraction = 0.1
    """Learning rate at the last step, as a share of the peak. No effect on `constant`."""

    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay, on matrices only (norms and biases are never decayed)."""

    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's first moment."""

    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of AdamW's second moment."""

    adam_eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""

    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Clip the global gradient norm to this. null: never clip."""

    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    """Precision of forward and backward. Parameters, gradients' sums and moments stay in fp32 (fp64 under
    `fp64`, which is for proofs). `auto`: bf16 where the device computes it natively, else fp32."""

    float8: Literal["none", "tensorwise", "rowwise"] = "none"
    """Compute the decoder layers' matrix products in float8 with this scaling, on GPUs that have it (compute
    capability 8.9 and up)."""

    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """`full` keeps only each layer's input and recomputes the layer in the backward pass: least memory, about a
    third more compute; on a CPU, freed memory goes back to the system at once. `selective` keeps the results of
    attention and of every second matrix product too, and recomputes the rest."""

    compile: bool = False
    """Compile each decoder layer with torch.compile: faster steps after a start that takes minutes. On a CPU it
    needs a C++ compiler."""

    optimizer_state: Literal["fp32", "bf16", "8bit"] = "fp32"
    """How AdamW's two moments are kept between steps: 8, 4 or about 2 bytes a parameter. The arithmetic is in
    fp32 always."""

    export_dtype: Literal["source", "bf16", "fp32", "fp64"] = "source"
    """Dtype of the exported weights; `source` is that of the model that was fine-tuned."""

    seed: int = Field(default=42, ge=0, lt=2**32)
    """Seed of the data order and of every random generator."""

    # Before the choices are checked, whose error could not say why this one is missing.
    @field_validator("precision", mode="before")
    @classmethod
    def _refuse_fp16(cls, precision: Any) -> Any:
        if precision in ("fp16", "float16", "half"):
            raise ValueError(
                f"training.precision is {precision}, whose range is too narrow for gradients without loss "
                "scaling: set bf16, which every GPU since Ampere computes as fast, or fp32"
            )
        return precision


class LoraConfig(Section):
    """Low-rank adapters, for `training.method` lora."""

    rank: int = Field(default=16, ge=1)
    """Rank of every adapter."""

    alpha: float = Field(default=32.0, gt=0)
    """Adapters are scaled by `alpha / rank`."""

    dropout: Fraction = 0.0
    """Dropout on the adapters' inputs while training."""

    target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the linear modules that get an adapter, such as q_proj and v_proj; `all-linear` is every one in
    the decoder layers."""

    export: Literal["adapter", "merged"] = "adapter"
    """`adapter` exports the adapters alone, as the package peft loads them; `merged` exports a whole model with
    the adapters added to its weights."""


class ParallelConfig(Section):
    """How the model is spread over devices."""

    num_nodes: int = Field(default=1, ge=1, le=10_000)
    """Nodes (pods) of the job."""

    procs_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Ranks on each node. Unset: one per accelerator, or two on a CPU-only machine with two or more cores."""

    strategy: Strategy = "FULL_SHARD"
    """FULL_SHARD shards parameters, gradients and optimizer state over all ranks; SHARD_GRAD_OP keeps gathered
    parameters between forward and backward; HYBRID_SHARD shards within a group and replicates across groups;
    NO_SHARD replicates everything."""

    shard_group_size: int | None = Field(default=None, ge=1)
    """Ranks in a shard group, for HYBRID_SHARD only. Unset: the ranks of one node."""

    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in the host's memory, and step the optimizer there. For
    accelerators whose memory is too small; much slower."""


def batch_problems(training: TrainingConfig, world_size: int) -> list[str]:
    """Why a number of ranks cannot share the global batch, as sentences."""
    per_pass = world_size * training.micro_batch_size
    if training.global_batch_size % per_pass == 0:
        return []
    above = -(-training.global_batch_size // per_pass) * per_pass
    return [
        f"training.global_batch_size is {training.global_batch_size}, which is not a multiple of "
        f"{world_size} rank{'s' * (world_size > 1)} × training.micro_batch_size {training.micro_batch_size}: "
        f"the next that is, is {above}"
    ]


def shard_group_problems(parallel: ParallelConfig, world_size: int | None) -> list[str]:
    """What is wrong with the shard group; `world_size` None: not known yet."""
    group = parallel.shard_group_size
    if group is None:
        return []
    if parallel.strategy != "HYBRID_SHARD":
        return [
            f"parallel.shard_group_size is {group}, but it has a meaning only with parallel.strategy "
            f"HYBRID_SHARD, not {parallel.strategy}"
        ]
    if world_size is None or world_size % group == 0:
        return []
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    return [
        f"parallel.shard_group_size is {group}, which does not divide the {world_size} ranks: "
        f"choose one of {', '.join(map(str, divisors))}"
    ]
