"""The version that holds the alias, as the tuned model's opponent; or why there is none to compare with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.step import Step
from training.adapter_folder import WEIGHTS as ADAPTER_WEIGHTS
from training.config import RunConfig
from training.errors import UserError
from training.model_files import weight_files
from training.run_folder import RunFolder, RunInputs
from training.store import about


class Champion(Protocol):
    """What is needed of `components.tracking.champion.Champion`."""

    @property
    def version(self) -> str:
        """Its number in the registry."""

    @property
    def folder(self) -> Path:
        """Its model, or adapter."""

    @property
    def base_folder(self) -> Path | None:
        """The model that an adapter belongs to."""

    def is_of(self, folder: RunFolder) -> bool:
        """Whether the run of this folder made it."""


@dataclass(frozen=True)
class Opponent:
    """The champion as far as it can be compared with.

    Attributes:
        champion: What is to be measured; None: nothing is.
        version: Of the champion; None where none was found.
        reason: Why nothing is compared; empty if something is, or there is no champion.
        is_trouble: Whether that is something to warn of.
    """

    champion: Champion | None = None
    version: str | None = None
    reason: str = ""
    is_trouble: bool = False


def find_opponent(step: Step, config: RunConfig, inputs: RunInputs) -> Opponent:
    """Find the champion, and whether it can be measured on this run's held-out tokens and that means anything.

    Args:
        step: The step at work.
        config: The run's.
        inputs: The run's; the model's tokenizer made the data set.
    """
    if not config.evaluation.champion:
        return Opponent(reason="evaluation.champion is false, so the champion is not compared with.")
    # Here, because it imports mlflow, which takes seconds.
    from components.tracking.champion import champion_of

    alias = config.registry.alias
    try:
        champion = champion_of(config, step.folder.root, step.note)
    except UserError as error:
        return Opponent(
            reason=f"The champion cannot be compared with, so the alias stays with it: {error}", is_trouble=True
        )
    if champion is None:
        return Opponent()
    version = champion.version
    if champion.is_of(step.folder):
        return Opponent(
            version=version, reason=f"Version {version}, which holds the alias {alias}, is this run's own."
        )
    trouble = (
        _TOKENIZER
        if not _same_tokenizer(champion.folder, inputs.model)
        else _why_not_measured(champion, config, inputs.dataset)
    )
    if trouble:
        reason = f"Version {version}, which holds the alias {alias}, is not compared with: {trouble}."
        return Opponent(version=version, reason=reason, is_trouble=True)
    return Opponent(champion, version)


_TOKENIZER = "it has another tokenizer, so that its loss per token means something else"


def _why_not_measured(champion: Champion, config: RunConfig, dataset: Path) -> str:
    """Why a model cannot take this data set's held-out rows and prompts; empty if it can.

    Said by its files before a job starts, whose ranks would fail of it, and with them the whole evaluation.
    """
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig

    from training.data import PackedDataset, check_lengths
    from training.measure.generate import check_room, pick_prompts

    adapter = [champion.folder / ADAPTER_WEIGHTS] if champion.base_folder is not None else []
    whole = champion.base_folder or champion.folder
    try:
        model = AutoConfig.from_pretrained(whole, trust_remote_code=False)
        for file in (*adapter, *weight_files(whole)):
            with safe_open(file, framework="numpy"):
                pass  # its head tells whether it is whole
        check_lengths(PackedDataset(dataset / "heldout.arrow"), model, config.model.max_context)
        evaluation = config.evaluation
        if pick_prompts(dataset, evaluation.num_generations, evaluation.num_scored):
            check_room(model, evaluation.max_new_tokens)
    except (UserError, OSError, ValueError, SafetensorError) as error:
        return str(error).rstrip(".")
    highest, rows = int(about(dataset)["max_token_id"]), model.get_text_config().vocab_size
    return f"the data has the token {highest}, and its vocabulary ends at {rows - 1}" if highest >= rows else ""


def _same_tokenizer(one: Path, other: Path) -> bool:
    """Whether two folders' tokenizers make the same tokens of a text; one that has none is taken for the same."""
    files = one / "tokenizer.json", other / "tokenizer.json"
    if not all(file.is_file() for file in files):
        return True
    if files[0].read_bytes() == files[1].read_bytes():
        return True
    from tokenizers import Tokenizer

    first, second = (Tokenizer.from_file(str(file)) for file in files)
    return bool(first.get_vocab(with_added_tokens=True) == second.get_vocab(with_added_tokens=True))
