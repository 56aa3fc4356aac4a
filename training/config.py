"""`RunConfig`: the one typed description of a run.

Every field says what it does under its name; `docs/configuration.md` is generated from here. How a config is
put together from recipe, overrides and pipeline parameters lives in `training.resolve`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from training.credentials import credentials_in, has_login, names_credential
from training.kubernetes_placement import Affinity, Toleration
from training.kubernetes_rules import (
    RULE,
    Annotations,
    Endpoint,
    EnvName,
    EnvValue,
    Image,
    KubernetesName,
    LabelKey,
    Labels,
    LabelValue,
    Memory,
    Namespace,
    Quantity,
    QueueName,
    ResourceName,
    Resources,
    SecretKey,
)

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

Strategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"]


_RENDEZVOUS_PORT = 23456
"""The training operator's own, on the first pod."""


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    # To pydantic, true is a 1; to who wrote `yes`, it was none.
    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, given: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(given, bool) and kind is not bool and {int, float} & {kind, *get_args(kind)}:
            raise PydanticCustomError(RULE, "give a number")
        return given


class ModelConfig(_Section):
    """Which model is fine-tuned."""

    name: str = Field(min_length=1)
    """A Hugging Face hub id (`org/model`), a local folder with safetensors and tokenizer, a local `.gguf` file,
    or `package://PACKAGE/FILE.gguf` for a GGUF file inside an installed Python package."""

    revision: str | None = None
    """Branch, tag or commit of a hub model. It is pinned to the commit at download. Unset: the default branch."""

    attention: Literal["auto", "documents", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation. `documents` computes each packed document alone, in one variable-length kernel
    on a GPU; `flash_attention_2` does so through the package flash-attn; `sdpa` and `eager` mask a packed
    sample. `auto`: `documents`; eager where the architecture does not support it."""

    init: Literal["pretrained", "random"] = "pretrained"
    """`random` takes only the architecture and the tokenizer from the model, and trains from new weights drawn
    with `training.seed`."""

    resize_vocabulary: bool = False
    """Grow the embeddings of a model whose tokenizer has more tokens than it has rows for. New rows start as the
    mean of the old."""

    max_context: int | None = Field(default=None, ge=1)
    """Refuse a `data.sequence_length` above this many tokens. Unset: the model's own context length, which is
    read when the model is at hand."""


Format = Literal["auto", "chat", "prompt_completion", "instruction", "text"]

ColumnRole = Literal[
    "messages", "tools", "system", "prompt", "completion", "instruction", "input", "output", "text"
]
"""What a column can be for."""


class DataSource(_Section):
    """One of several sources of rows."""

    source: str = Field(min_length=1)
    """A file, a folder, a glob or an `s3://` address of them, or a hub data set id, as `data.train` takes it."""

    name: str | None = Field(default=None, min_length=1, max_length=60)
    """Name in statistics and reports. Unset: from `source`."""

    weight: float | None = Field(default=None, gt=0)
    """Share of the training tokens, relative to the weights of the other sources: all of them have one, or none
    has. An epoch is as long as all sources together; rows of a source are repeated or left out, chosen by their
    hash, until it has its share. Unset: every row once."""

    split: str | None = None
    """Split of a hub data set. Unset: `data.train_split` or `data.heldout_split`."""

    subset: str | None = None
    """Subset (configuration) of a hub data set. Unset: `data.subset`."""

    revision: str | None = None
    """Branch, tag or commit of a hub data set. Unset: `data.revision`."""

    format: Format | None = None
    """Shape of a row. Unset: `data.format`."""

    columns: dict[ColumnRole, str] | None = None
    """Columns by what they are for. Unset: `data.columns`."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"source": given} if isinstance(given, str) else given


ANSWER_MEASURES = ("exact_match", "rougeL")
"""What is measured of answers to held-out prompts; higher is better, from 0 to 1."""


def _kind_of_sources(given: Any) -> str:
    return "one" if isinstance(given, str) else "several"


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, Mapping) else given


Sources = Annotated[
    Annotated[str, Field(min_length=1), Tag("one")] | Annotated[tuple[DataSource, ...], Tag("several")],
    Discriminator(_kind_of_sources),
    BeforeValidator(_listed),
]
"""The name of a source, or a list of sources."""


class DataConfig(_Section):
    """What the model is fine-tuned on."""

    train: Sources
    """Rows to train on: a file (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, `.arrow`, `.txt`, each also as
    `.gz` or `.zst`), a folder or a glob of such files, the same at an `s3://` address, or a Hugging Face hub data
    set id. A list of `{source: …, weight: …}` mixes several. Relative paths start at the working folder."""

    train_split: str = "train"
    """Split of a hub data set to train on."""

    subset: str | None = None
    """Subset (configuration) of a hub data set. Unset: its default."""

    revision: str | None = None
    """Branch, tag or commit of a hub data set, pinned to the commit at download."""

    heldout: Sources | None = None
    """Rows to evaluate on, given as `train` is. Unset: `heldout_fraction` of the training rows, chosen by their
    hash."""

    heldout_split: str = "test"
    """Split of a hub data set to evaluate on."""

    heldout_fraction: Fraction = 0.05
    """Share of each source's rows held out when `heldout` is unset; at least one row. A row's hash decides, so
    the split is stable when rows are added."""

    format: Format = "auto"
    """Shape of a row: `chat` has a list of messages (as {role, content}, or as {from, value}), of which the
    assistant's are supervised; `prompt_completion` has a prompt and a completion, of which the completion is
    supervised; `instruction` has an instruction, perhaps an input, and an output, which is supervised; `text` has
    one string, supervised whole. `auto`: found from the columns of the first rows, and shown."""

    columns: dict[ColumnRole, str] = {}
    """Columns by what they are for, such as {messages: turns, tools: functions}. Unset: found by their usual
    names, and shown."""

    prompt_template: str | None = None
    """How `instruction` rows are asked: text with {instruction} and {input}. Unset: through the model's chat
    template, as a message of the user; a model without one is given both with an empty line between."""

    system_prompt: str | None = None
    """System message of conversations that have none. Unset: none."""

    sequence_length: int = Field(default=1024, ge=8)
    """Most tokens in a sample; `long_documents` says what happens to longer documents."""

    packing: Literal["best_fit", "none"] = "best_fit"
    """`best_fit` puts several documents into a sample, none of which sees another. `none` gives every document a
    sample of its own; the shorter in a micro-batch are padded."""

    long_documents: Literal["auto", "cut", "split", "refuse"] = "auto"
    """What happens to documents of more than `sequence_length` tokens: `cut` at the end, and counted; `split`
    into documents that begin anew, less those in which nothing is supervised; `refuse` stops the run and names
    the row. `auto`: `split` for the format text, else `cut`."""

    deduplicate: bool = True
    """Drop rows that are the same as an earlier one, and count them."""

    max_malformed_rows: int = Field(default=0, ge=0)
    """Most rows that may be left out because they cannot be read, have another shape, or nothing to learn. Each
    is counted and named by file and line; one more stops the run."""

    max_train_rows: int | None = Field(default=None, ge=1)
    """Use only the first rows of each source of the training data, for a quick try. Unset: all."""

    streaming: bool = False
    """Read hub data sets as they come over the network instead of downloading them first: for sets larger than
    the disk. Other sources are always read so. The tokenized samples have to fit into the store."""

    num_workers: int | None = Field(default=None, ge=1, le=1024)
    """Processes that tokenize. Unset: one per core. The result is the same whatever the number."""

    @property
    def train_sources(self) -> tuple[DataSource, ...]:
        """What `train` names, as sources of which every field but `name` and `weight` is resolved."""
        return self._resolved(self.train, self.train_split)

    @property
    def heldout_sources(self) -> tuple[DataSource, ...]:
        """What `heldout` names, likewise; empty if it is unset."""
        return () if self.heldout is None else self._resolved(self.heldout, self.heldout_split)

    def _resolved(self, given: str | tuple[DataSource, ...], split: str) -> tuple[DataSource, ...]:
        sources = (DataSource(source=given),) if isinstance(given, str) else given
        return tuple(
            source.model_copy(
                update={
                    "split": source.split or split,
                    "subset": source.subset or self.subset,
                    "revision": source.revision or self.revision,
                    "format": source.format or self.format,
                    "columns": self.columns if source.columns is None else source.columns,
                }
            )
            for source in sources
        )

    @property
    def train_name(self) -> str:
        """The training data's name for people."""
        return _names(self.train_sources)


def _names(sources: Sequence[DataSource]) -> str:
    return " + ".join(source.name or source.source for source in sources)


class TrainingConfig(_Section):
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


class LoraConfig(_Section):
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


class ParallelConfig(_Section):
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


class CheckpointConfig(_Section):
    """When the training state is saved."""

    every_steps: int = Field(default=100, ge=1)
    """Steps between checkpoints; one more is saved when the run is asked to stop."""

    asynchronous: bool = True
    """Write checkpoints while training goes on; a step waits only until the state is copied to host memory. That
    copy takes as much memory as the state itself."""

    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept while the run goes on."""

    keep_after_finish: bool = False
    """Keep checkpoints when the run has finished. They are several times the model's size, and the exported
    model does not need them."""


class ResilienceConfig(_Section):
    """What happens when an attempt fails."""

    max_attempts: int = Field(default=2, ge=1)
    """Attempts in all. A failure that trying again cannot mend (configuration, data) ends the run at once."""

    queue_timeout_s: int | None = Field(default=None, ge=1)
    """Most seconds that an attempt may wait in a queue (Kueue) before the run fails. null: as long as it takes."""

    start_timeout_s: int | None = Field(default=1800, ge=1)
    """Most seconds from its admission until all pods of an attempt run: scheduling, new nodes, image pulls. null:
    no limit."""

    run_timeout_s: int | None = Field(default=None, ge=1)
    """Most seconds that an attempt may run. null: no limit."""

    stall_timeout_s: int | None = Field(default=1800, ge=1)
    """Most seconds that a running attempt may say nothing, neither a step nor a save, before it is stopped and
    counts as failed. null: no limit."""

    heartbeat_timeout_s: int = Field(default=300, ge=5)
    """Seconds after which a cluster job that hears nothing of the `train` step saves and leaves."""


class EvaluationConfig(_Section):
    """How base model, tuned model and champion are compared."""

    every_steps: int | None = Field(default=None, ge=1)
    """Also take the held-out loss while training, every so many steps. Unset: only before and after."""

    max_samples: int | None = Field(default=None, ge=1)
    """Most held-out samples for that; the first of them are taken. Unset: all."""

    num_generations: int = Field(default=6, ge=0)
    """Held-out prompts whose answers stand side by side in the report. Rows of the format text ask nothing."""

    num_scored: int = Field(default=64, ge=0)
    """Held-out prompts whose answers are compared with the reference: exact match and ROUGE-L. 0: none."""

    max_new_tokens: int = Field(default=96, ge=1)
    """Longest answer, in tokens."""

    tasks: tuple[str, ...] = ()
    """Tasks of lm-eval that every model is measured on: names, or YAML files of tasks of one's own. They need the
    package lm-eval."""

    task_limit: int | None = Field(default=None, ge=1)
    """Most examples of each task. Unset: all."""

    num_fewshot: int | None = Field(default=None, ge=0)
    """Examples that stand before each question of a task. Unset: as the task says."""

    champion: bool = True
    """Measure the version that holds `registry.alias` too, on the same held-out rows and tasks."""

    num_nodes: int = Field(default=1, ge=1, le=10_000)
    """Nodes of the evaluation, which is a job of `cluster.launcher` as the training is."""

    procs_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Ranks on each of them. Unset: as `parallel.procs_per_node`."""

    sharding: Literal["auto", "none", "full"] = "auto"
    """`none` gives every rank a whole model; `full` shards it over all ranks, for a model that does not fit one
    device. `auto`: by the memory of a device."""


class GateConfig(_Section):
    """What a version must achieve for the alias to move to it."""

    min_improvement: float = Field(default=0.0, ge=0)
    """Held-out loss must be lower than the base model's by more than this, in nats per token."""

    max_regression: float = Field(default=0.0, ge=0)
    """Held-out loss may be higher than the champion's by at most this, in nats per token, both measured on this
    run's held-out rows."""

    significant: bool = False
    """The improvement over the base model must be certain: the whole of its 95 % confidence interval must lie
    above `min_improvement`."""

    floors: dict[str, float] = {}
    """Least values of measures, such as {arc_easy/acc: 0.4, rougeL: 0.3, exact_match: 0.1}. Higher is better."""

    max_drops: dict[str, float] = {}
    """By how much measures may be lower than the base model's, such as {arc_easy/acc: 0.02}: what must not be
    forgotten."""


class RegistryConfig(_Section):
    """Where the result is registered in MLflow."""

    tracking_uri: str | None = None
    """MLflow tracking server, or a database such as `sqlite:////path/mlflow.db`. Unset: SQLite inside the
    store. Credentials never stand here: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or
    MLFLOW_TRACKING_TOKEN) in the steps' environment, from a secret."""

    experiment: str = Field(default="shardline", min_length=1)
    """MLflow experiment of the run."""

    model_name: str = "shardline-model"
    """Name of the registered model."""

    alias: str = "champion"
    """Alias that moves to the new version when the gate passes. `candidate` always marks the newest version, and
    MLflow keeps `latest` and `v1`, `v2`, … for itself."""

    artifact: Literal["auto", "reference", "copy"] = "auto"
    """`copy` uploads the tuned model to MLflow's artifact store; `reference` registers its place in the store,
    which has to outlive the version and be mounted where the model is loaded. `auto`: `reference` with a database,
    `copy` with a server."""

    gate: GateConfig = GateConfig()
    """What a version must achieve for the alias to move to it."""

    # Before the type is checked, whose error would show what was given.
    @field_validator("tracking_uri", mode="before")
    @classmethod
    def _refuse_credentials(cls, uri: Any) -> Any:
        # The config is saved, shown and logged in many places; what is not in it cannot leak from it.
        if has_login(str(uri)):
            raise ValueError(
                "registry.tracking_uri holds a user or password: leave them out of it, and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, from a secret"
            )
        return uri

    @field_validator("model_name")
    @classmethod
    def _check_model_name(cls, name: str) -> str:
        if not re.fullmatch(r"[^/:.\s]([^/:]*[^/:\s])?", name):
            raise PydanticCustomError(
                RULE, "a name has no '/' and no ':', no blank at its ends and no '.' at its beginning"
            )
        return name

    @field_validator("alias")
    @classmethod
    def _refuse_reserved(cls, alias: str) -> str:
        if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]*", alias):
            raise PydanticCustomError(RULE, "an alias has letters, digits, '_' and '-', and begins with a letter")
        if re.fullmatch(r"candidate|latest|v\d+", alias, re.IGNORECASE):
            raise ValueError(f"registry.alias is '{alias}', which has a meaning of its own: choose another name")
        return alias


class ClusterConfig(_Section):
    """Where the training processes run, and what their pods ask of a cluster."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = "auto"
    """`pytorchjob` and `trainjob` create a job of that kind in Kubernetes; `local` starts torchrun on the machine
    (or in the pod) of the `train` step. `auto`: inside a cluster the kind of job that is installed there, else
    local."""

    namespace: Namespace | None = None
    """Namespace of the job. Unset: that of the `train` step's pod, or of the kubeconfig's context."""

    image: Image | None = None
    """Image of the job's pods. Unset: that of the `train` step's pod."""

    image_pull_secrets: tuple[KubernetesName, ...] = ()
    """Secrets that hold credentials of the image's registry."""

    service_account: KubernetesName | None = None
    """Service account of the job's pods. They need no rights; unset: the namespace's default."""

    store_claim: KubernetesName | None = None
    """PersistentVolumeClaim (ReadWriteMany) that is mounted at the store's root. The pipeline's parameter of the
    same name sets it."""

    gpus_per_node: int | None = Field(default=None, ge=0, le=1024)
    """GPUs that each pod asks for; 0 trains on CPUs. Unset: `parallel.procs_per_node`."""

    gpu_resource: ResourceName = "nvidia.com/gpu"
    """Name under which the cluster offers its GPUs."""

    cpus_per_node: Quantity | None = None
    """CPUs that each pod asks for, such as 48. Unset: what the `train` task asks for, if anything."""

    memory_per_node: Memory | None = None
    """Memory that each pod asks for, such as 512Gi. Unset: what the `train` task asks for, if anything."""

    efa_per_node: int = Field(default=0, ge=0, le=1024)
    """Elastic Fabric Adapter interfaces (AWS) that each pod asks for."""

    resources: Resources = {}
    """Other resources that each pod asks for, by name, such as {hugepages-2Mi: 5120Mi, rdma/ib: 1}."""

    shared_memory: Memory | None = None
    """Most that /dev/shm takes of a pod's memory, such as 64Gi. Unset: no limit of its own."""

    env: dict[EnvName, EnvValue] = {}
    """Environment of the job's pods, on top of Shardline's own settings for NCCL and the like. Nothing secret."""

    secrets: dict[EnvName, SecretKey] = {}
    """Environment from secrets, as {VARIABLE: secret/key}."""

    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels that a node must have, such as {node.kubernetes.io/instance-type: p5.48xlarge}."""

    autoscaling: bool = False
    """Whether the cluster adds machines on demand, so that preflight does not expect them to be there already."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods tolerate, as Kubernetes writes them. Those of the `train` task come on top."""

    affinity: Affinity = {}
    """Affinity of the pods, as Kubernetes writes it. Unset: that of the `train` task."""

    labels: Labels = {}
    """More labels on the job and its pods."""

    annotations: Annotations = {}
    """More annotations on the job and its pods."""

    queue: QueueName | None = None
    """Kueue's LocalQueue that admits the job; with `gang: volcano` Volcano's queue."""

    gang: Literal["none", "volcano", "coscheduling"] = "none"
    """Start all pods or none, through this gang scheduler; the training operator must run with it."""

    priority_class: KubernetesName | None = None
    """PriorityClass of the pods."""

    rendezvous: Literal["c10d", "etcd"] = "c10d"
    """How the nodes of a PyTorchJob find each other: `c10d` through the first pod, `etcd` through a server."""

    etcd_endpoint: Endpoint | None = None
    """`HOST:PORT` of the etcd server (with its version 2 API), for `rendezvous: etcd`."""

    hyperpod_max_retries: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """On SageMaker HyperPod: ask for automatic resume of the job, at most so many times."""

    grace_s: int = Field(default=330, ge=30, le=86_400)
    """Seconds that a pod may take to save after it was told to stop."""

    ttl_s: int | None = Field(default=86400, ge=0, le=2**31 - 1)
    """Seconds after its end until a PyTorchJob and its pods are removed. null: never."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port at which the node of rank 0 serves the run's metrics for Prometheus while it trains, to all who reach
    that node: `http://<node>:<port>/metrics`. Unset: no port is opened."""

    @field_validator("env", "secrets")
    @classmethod
    def _refuse_reserved_env(cls, env: dict[str, str]) -> dict[str, str]:
        if reserved := [name for name in env if name.startswith(("PET_", "SHARDLINE_"))]:
            raise ValueError(
                f"cluster.env and cluster.secrets cannot set {', '.join(reserved)}: PET_* is the training "
                "operator's and SHARDLINE_* the launcher's"
            )
        return env

    @field_validator("env")
    @classmethod
    def _refuse_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        # The config is saved, shown and logged in many places.
        if names := [name for name in env if names_credential(name)]:
            raise ValueError(
                f"cluster.env sets {', '.join(names)}, which looks like a credential: put it into a Kubernetes "
                f"secret, and set cluster.secrets to {{{names[0]}: SECRET/KEY}}"
            )
        return env


class RunConfig(_Section):
    """The one description of a run."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig = TrainingConfig()
    lora: LoraConfig = LoraConfig()
    parallel: ParallelConfig = ParallelConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resilience: ResilienceConfig = ResilienceConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    registry: RegistryConfig = RegistryConfig()
    cluster: ClusterConfig = ClusterConfig()

    # Before anything else is checked, whose error would show what was given.
    @model_validator(mode="before")
    @classmethod
    def _refuse_credentials(cls, content: Any) -> Any:
        # Of this field the validator of its own has more to say.
        found = dict.fromkeys(where for where in credentials_in(content) if where != "registry.tracking_uri")
        if found:
            raise ValueError(
                f"{', '.join(found)} holds what looks like a password or a token: leave it out of the "
                "configuration, which is saved and shown; put it into a Kubernetes secret and refer to that in "
                "cluster.secrets as {VARIABLE: SECRET/KEY}, or set it in the environment of this machine"
            )
        return content

    @model_validator(mode="after")
    def _check_across_fields(self) -> "RunConfig":
        parallel, data = self.parallel, self.data
        # Before the number of ranks is known, it can be any multiple of the nodes.
        known = parallel.num_nodes * (parallel.procs_per_node or 1)
        problems = _batch_problems(self.training, known)
        problems += _shard_group_problems(parallel, known if parallel.procs_per_node else None)
        if self.model.max_context is not None and data.sequence_length > self.model.max_context:
            problems.append(
                f"data.sequence_length is {data.sequence_length}, but model.max_context allows at most "
                f"{self.model.max_context}"
            )
        if data.heldout is None and data.heldout_fraction == 0:
            problems.append(
                "there is nothing to evaluate on: set data.heldout to a file, or data.heldout_fraction above 0"
            )
        problems += _source_problems(data)
        problems += _gate_problems(self.registry.gate, self.evaluation)
        if parallel.num_nodes > 1 and self.cluster.launcher == "local":
            problems.append(one_node_only(parallel.num_nodes))
        problems += launcher_problems(self.cluster)
        problems += _lora_problems(self)
        if self.evaluation.max_samples is not None and self.evaluation.every_steps is None:
            problems.append(
                f"evaluation.max_samples is {self.evaluation.max_samples}, but it has a meaning only with "
                "evaluation.every_steps: set that too"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _source_problems(data: DataConfig) -> list[str]:
    problems = []
    for field, sources in (("train", data.train_sources), ("heldout", data.heldout_sources)):
        if not sources and (field == "train" or data.heldout is not None):
            problems.append(f"data.{field} is an empty list: name a source in it")
        weighted = [source for source in sources if source.weight is not None]
        if weighted and field == "heldout":
            problems.append("data.heldout has weights, but every held-out row counts once: leave them out")
        elif weighted and len(weighted) < len(sources):
            without = next(source.source for source in sources if source.weight is None)
            problems.append(
                f"data.train has weights for {len(weighted)} of {len(sources)} sources: give '{without}' one too, "
                "or leave all of them out"
            )
        names = [source.name or source.source for source in sources]
        if twice := next((name for name in names if names.count(name) > 1), None):
            problems.append(f"data.{field} has '{twice}' twice: leave one out, or give them different names")
    return problems


def _gate_problems(gate: GateConfig, evaluation: EvaluationConfig) -> list[str]:
    """Rules about what is not measured could only fail at the end of the run."""
    problems = []
    for rule, measures in (("floors", gate.floors), ("max_drops", gate.max_drops)):
        for measure in measures:
            is_answer = measure in ANSWER_MEASURES
            if is_answer and not evaluation.num_scored:
                problems.append(
                    f"registry.gate.{rule} names {measure}, but evaluation.num_scored is 0: raise it, or remove "
                    "the rule"
                )
            if not is_answer and not evaluation.tasks:
                problems.append(
                    f"registry.gate.{rule} names {measure}, but evaluation.tasks is empty: add the task, or name "
                    f"one of {', '.join(ANSWER_MEASURES)}"
                )
    return problems


def check_world_size(config: RunConfig, world_size: int) -> None:
    """Check that a number of ranks can form the mesh and share the global batch.

    Args:
        config: The run.
        world_size: Ranks in all.

    Raises:
        ValueError: Names the fields that do not fit, and values that would.
    """
    problems = _batch_problems(config.training, world_size) + _shard_group_problems(config.parallel, world_size)
    if problems:
        raise ValueError("\n".join(problems))


def _batch_problems(training: TrainingConfig, world_size: int) -> list[str]:
    per_pass = world_size * training.micro_batch_size
    if training.global_batch_size % per_pass == 0:
        return []
    above = -(-training.global_batch_size // per_pass) * per_pass
    return [
        f"training.global_batch_size is {training.global_batch_size}, which is not a multiple of "
        f"{world_size} rank{'s' * (world_size > 1)} × training.micro_batch_size {training.micro_batch_size}: "
        f"the next that is, is {above}"
    ]


def one_node_only(num_nodes: int) -> str:
    """Say why a launcher that has one node cannot take a run of several."""
    return (
        f"parallel.num_nodes is {num_nodes}, but cluster.launcher local runs on one node: set parallel.num_nodes "
        "to 1 and parallel.procs_per_node to the ranks it should have, or run it in a cluster"
    )


def launcher_problems(cluster: ClusterConfig) -> list[str]:
    """What of the section does not fit together, or not its launcher, as sentences."""
    problems = []
    if cluster.rendezvous == "etcd" and cluster.etcd_endpoint is None:
        problems.append("cluster.rendezvous is etcd: set cluster.etcd_endpoint to the server's HOST:PORT")
    if cluster.rendezvous != "etcd" and cluster.etcd_endpoint is not None:
        problems.append("cluster.etcd_endpoint is set, but it has a meaning only with cluster.rendezvous etcd")
    if cluster.metrics_port == _RENDEZVOUS_PORT and cluster.rendezvous == "c10d":
        problems.append(
            f"cluster.metrics_port is {_RENDEZVOUS_PORT}, at which the nodes of a PyTorchJob meet: choose another"
        )
    problems += _given_twice(cluster)
    if cluster.launcher == "trainjob":
        # Its controller sets the rendezvous, and the kind has no field for these.
        for name in ("gang", "hyperpod_max_retries", "priority_class", "rendezvous"):
            if getattr(cluster, name) != ClusterConfig.model_fields[name].default:
                problems.append(
                    f"cluster.{name} is set, but a TrainJob has no such choice: leave it out, or set "
                    "cluster.launcher to pytorchjob"
                )
    return problems


def _given_twice(cluster: ClusterConfig) -> list[str]:
    """Of what is set in two places, one would have no effect."""
    problems = []
    if both := sorted(cluster.env.keys() & cluster.secrets.keys()):
        problems.append(f"{', '.join(both)} stands in cluster.env and in cluster.secrets: leave it out of one")
    fields = {
        cluster.gpu_resource: "gpus_per_node",
        "cpu": "cpus_per_node",
        "memory": "memory_per_node",
        "vpc.amazonaws.com/efa": "efa_per_node",
    }
    for name, field in fields.items():
        if name in cluster.resources and getattr(cluster, field) != ClusterConfig.model_fields[field].default:
            problems.append(f"{name} stands in cluster.resources, and cluster.{field} is set: leave one out")
    return problems


def _lora_problems(config: RunConfig) -> list[str]:
    if config.training.method != "lora":
        changed = [f"lora.{field}" for field, value in config.lora if value != getattr(LoraConfig(), field)]
        return [
            f"{field} is set, but it has a meaning only with training.method lora, not {config.training.method}"
            for field in changed
        ]
    if config.model.init == "random":
        return ["model.init is random, but training.method lora freezes the model: set training.method to full"]
    if config.model.resize_vocabulary and config.lora.export == "adapter":
        return [
            "model.resize_vocabulary is true, but an adapter has no embeddings for new tokens: set lora.export to "
            "merged, training.method to full, or model.resize_vocabulary to false"
        ]
    return []


def _shard_group_problems(parallel: ParallelConfig, world_size: int | None) -> list[str]:
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
