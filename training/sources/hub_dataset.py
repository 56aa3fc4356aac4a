"""Rows of a data set on the Hugging Face hub."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from training.errors import UserError
from training.hub import hub_errors, look_up, one_line
from training.sources.lines import BLOCK_BYTES
from training.sources.tables import MAX_ROWS, TableBlock, table_blocks

_STREAMED_ROWS = 256
"""Rows that are fetched together where their size is not known before."""

_BATCH_BYTES = 4 * BLOCK_BYTES


@dataclass(frozen=True)
class HubDataset:
    """Rows of one split.

    Attributes:
        name: For people.
        repo: Hub id.
        commit: Commit that it is pinned to.
        subset: Name of the subset; None is the default.
        split: Name of the split.
        streaming: Whether to read it as it comes, without a copy on disk.
    """

    name: str
    repo: str
    commit: str
    subset: str | None
    split: str
    streaming: bool

    @property
    def content(self) -> str:
        """What pins the content."""
        return f"{self.repo}@{self.commit}/{self.subset or ''}/{self.split}"

    @property
    def revision(self) -> str:
        """The commit."""
        return self.commit

    def blocks(self) -> Iterator[TableBlock]:
        """The rows, in the order of the split.

        Raises:
            UserError: The data set cannot be loaded, or the split has no rows.
        """
        is_empty = True
        for block in table_blocks(self._batches(), f"{self.repo} split {self.split}"):
            is_empty = False
            yield block
        if is_empty:
            raise UserError(f"the split '{self.split}' of the data set '{self.repo}' has no rows")

    def _batches(self) -> Iterator[Any]:
        look_up(self.repo, self.commit, "dataset")
        import datasets

        with self._errors():
            dataset = datasets.load_dataset(
                self.repo, self.subset, split=self.split, revision=self.commit, streaming=self.streaming
            )
            size = (
                _STREAMED_ROWS
                if self.streaming
                else max(1, _BATCH_BYTES * len(dataset) // max(1, dataset.data.nbytes))
            )
            for table in dataset.with_format("arrow").iter(min(size, MAX_ROWS)):
                yield from table.combine_chunks().to_batches()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        try:
            with hub_errors(self.repo, self.commit, "dataset"):
                yield
        except UserError:
            raise
        except DatasetGenerationError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from error  # a full disk, for example
            raise UserError(self._refusal(error)) from error
        except (DatasetsError, ValueError, RuntimeError) as error:
            raise UserError(self._refusal(error)) from error

    def _refusal(self, error: Exception) -> str:
        subset = f" of the subset '{self.subset}'" if self.subset else ""
        return (
            f"the split '{self.split}'{subset} of the data set '{self.repo}' cannot be loaded: {one_line(error)}. "
            "Set data.train, data.subset and data.train_split to a data set in JSON, CSV or Parquet, or save it "
            "as a .jsonl file"
        )
