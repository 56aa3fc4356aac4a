"""The section `model`."""

from typing import Literal

from pydantic import Field

from training.config.section import Section


class ModelConfig(Section):
    """Which model is fine-tuned."""

    name: str = Field(min_length=1)
    """A Hugging Face hub id (`org/model`), a local folder with safetensors and tokenizer, such a folder at
    `s3://BUCKET/FOLDER`, a local `.gguf` file, or `package://PACKAGE/FILE.gguf` for a GGUF file inside an
    installed Python package."""

    revision: str | None = None
    """Branch, tag or commit of a hub model. It is pinned to the commit at download. Unset: the default branch. A
    model in S3 is pinned to its objects' ETags."""

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
