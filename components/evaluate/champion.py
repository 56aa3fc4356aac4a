"""The version that holds the alias, as the tuned model's opponent; or why there is none to compare with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.step import Step
from training.config import RunConfig
from training.errors import UserError
from training.run_folder import RunFolder


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


def find_opponent(step: Step, config: RunConfig, tokenizer_folder: Path) -> Opponent:
    """Find the champion, and whether its loss on this run's held-out tokens means anything.

    Args:
        step: The step at work.
        config: The run's.
        tokenizer_folder: A folder with the tokenizer that the data set was made with.
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
    if not _same_tokenizer(champion.folder, tokenizer_folder):
        return Opponent(
            version=version,
            reason=(
                f"Version {version}, which holds the alias {alias}, has another tokenizer, so that its loss per "
                "token cannot be compared."
            ),
            is_trouble=True,
        )
    return Opponent(champion, version)


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
