"""The section `data`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from training.config.section import Fraction, Section

Format = Literal["auto", "chat", "prompt_completion", "instruction", "text"]

ColumnRole = Literal[
    "messages", "tools", "system", "prompt", "completion", "instruction", "input", "output", "text"
]
"""What a column can be for."""


class DataSource(Section):
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
    """Split of a hub data set, or of a folder that has several. Unset: `data.train_split` or
    `data.heldout_split`."""

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


class DataConfig(Section):
    """What the model is fine-tuned on."""

    train: Sources
    """Rows to train on: a file (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, `.arrow`, `.txt`, each also as
    `.gz` or `.zst`), a folder or a glob of such files, the same at an `s3://` address, or a Hugging Face hub data
    set id. A `.txt` has a row for each paragraph, a CSV a header. A list of `{source: …, weight: …}` mixes
    several. Relative paths start at the working folder."""

    train_split: str = "train"
    """Split to train on, of a hub data set, or of a folder that `datasets` saved or whose files' names tell of
    several (`train-00000-of-00002.parquet`, `test.jsonl`, `dev/a.csv`). A glob reads all that it matches."""

    subset: str | None = None
    """Subset (configuration) of a hub data set. Unset: its default."""

    revision: str | None = None
    """Branch, tag or commit of a hub data set, pinned to the commit at download."""

    heldout: Sources | None = None
    """Rows to evaluate on, given as `train` is. Unset: `heldout_fraction` of the training rows, chosen by their
    hash."""

    heldout_split: str = "test"
    """Split to evaluate on, likewise."""

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
    """System message of conversations that have none; prompts and instructions that no template renders get it as
    text before them. Unset: none."""

    special_tokens: Literal["refuse", "tokens"] = "refuse"
    """What a special token is that is spelled in a text, or in a prompt or completion that no template renders:
    `refuse` counts the row as malformed; `tokens` takes it as the token, for chats that are rendered already. In
    messages it is always text."""

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


def source_problems(data: DataConfig) -> list[str]:
    """What of the sources does not fit together, as sentences."""
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
    formats = {source.format for source in (*data.train_sources, *data.heldout_sources)}
    if data.prompt_template is not None and not formats & {"auto", "instruction"}:
        problems.append(
            "data.prompt_template is set, but no source has the format instruction or auto: leave it out"
        )
    if data.system_prompt is not None and formats == {"text"}:
        problems.append("data.system_prompt is set, but all sources have the format text: leave it out")
    return problems
