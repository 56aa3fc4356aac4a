"""What a model folder holds: facts for the manifest, and checks that it can be trained."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import RunConfig
from training.errors import UserError
from training.hub import one_line
from training.model_files import weight_files

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class ConfigFacts:
    """What config.json says."""

    model_type: str
    context_length: int | None
    """Tokens; None if the model sets itself no limit."""
    vocab_size: int
    """Rows of the embedding."""


def describe(folder: Path, with_weights: bool = True) -> dict[str, Any]:
    """Facts about a model folder: type, context length, parameters, dtype and bytes.

    Reads the headers of the weight files only.

    Args:
        folder: The model.
        with_weights: Whether it has weights; if not, parameters and dtype are those of its config.

    Raises:
        UserError: A weight file is not safetensors, or the model cannot be trained.
    """
    facts = read_config(folder)
    files = weight_files(folder) if with_weights else []
    parameters: Counter[str] = Counter()
    for path in files:
        parameters.update(_count_parameters(path))
    if not with_weights:
        parameters.update(_parameters_to_be(folder))
    return {
        "model_type": facts.model_type,
        "context_length": facts.context_length,
        "vocab_size": facts.vocab_size,
        "num_parameters": parameters.total(),
        "dtype": parameters.most_common(1)[0][0],
        "bytes": sum(path.stat().st_size for path in files),
    }


def read_config(folder: Path) -> ConfigFacts:
    """Read config.json, and check that transformers knows the model as a causal language model.

    Raises:
        UserError: It is not one, needs code of its own, or is quantized.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"config.json of the model cannot be used: {one_line(error)}. Code that comes with a "
            "model is never run; choose a model that is part of transformers"
        ) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            f"the model's type is '{config.model_type}', which is not a causal language model: set model.name to "
            "one that writes text from left to right, such as a Llama or Qwen model"
        )
    if getattr(config, "quantization_config", None):
        raise UserError(
            "the model's weights are quantized (config.json has a quantization_config), and such weights cannot "
            "be trained: set model.name to the model it was quantized from"
        )
    text_config = config.get_text_config()
    length = getattr(text_config, "max_position_embeddings", None)
    return ConfigFacts(config.model_type, length, text_config.vocab_size)


def check_context(context_length: int | None, config: RunConfig) -> None:
    """Check that a packed sample, and an answer with at least a token of its prompt, fit the model's context.

    For samples, a `model.max_context` that is set stands in for the model's own length, and was checked with the
    config.

    Raises:
        UserError: Names both lengths.
    """
    length = config.data.sequence_length
    if config.model.max_context is None and context_length is not None and length > context_length:
        raise UserError(
            f"data.sequence_length is {length}, but the context of '{config.model.name}' is {context_length} "
            f"tokens: set data.sequence_length to at most {context_length}"
        )
    answer = config.evaluation.max_new_tokens
    asks = config.evaluation.num_generations > 0 and config.data.format != "text"
    if asks and context_length is not None and answer >= context_length:
        raise UserError(
            f"evaluation.max_new_tokens is {answer}, but the context of '{config.model.name}' is {context_length} "
            f"tokens, prompt included: set evaluation.max_new_tokens to less than {context_length}"
        )


def _parameters_to_be(folder: Path) -> dict[str, int]:
    """Parameters of the model that a config describes, tied ones once, by the dtype that it names."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    dtype = str(getattr(config, "dtype", None) or torch.float32).removeprefix("torch.")
    return {dtype: sum(parameter.numel() for parameter in model.parameters())}


def _count_parameters(path: Path) -> Counter[str]:
    from safetensors import SafetensorError, safe_open

    counts: Counter[str] = Counter()
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                tensor = file.get_slice(name)
                dtype = tensor.get_dtype()
                counts[_DTYPES.get(dtype, dtype.lower())] += math.prod(tensor.get_shape())
    except SafetensorError as error:
        raise UserError(
            f"{path.name} of the model is not a whole safetensors file (an unfinished download, or a Git LFS "
            f"pointer?): fetch it again ({error})"
        ) from error
    return counts
