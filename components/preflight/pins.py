"""Revisions, from the first start of a run on."""

from collections.abc import Sequence
from typing import Any

from training.config import DataConfig, DataSource, RunConfig
from training.hub import is_commit
from training.sources.hub_dataset import HubDataset
from training.sources.rows import Source


def data_pins(data: DataConfig, train: Sequence[Source], heldout: Sequence[Source]) -> dict[str, Any]:
    """The config's fields that fix each hub data set to its commit, by their dotted names.

    `data.revision` does for one data set. Of several, each source gets its own, so `data.train` and `data.heldout`
    become lists.

    Args:
        data: The config.
        train: What `open_train` found for it.
        heldout: What `open_heldout` found.
    """
    commits = {source.repo: source.commit for source in (*train, *heldout) if isinstance(source, HubDataset)}
    if not commits:
        return {}
    if len(commits) == 1 and not any(source.revision for source in (*_listed(data.train), *_listed(data.heldout))):
        return {"data.revision": next(iter(commits.values()))}
    pins: dict[str, Any] = {"data.train": _pinned(data.train, train), "data.revision": None}
    if data.heldout is not None:
        pins["data.heldout"] = _pinned(data.heldout, heldout)
    return pins


def keep_pins(config: RunConfig, saved: RunConfig) -> None:
    """Give a run that goes on the pins of its first start, as a branch may have moved since.

    Args:
        config: As it is asked for now. A model or data set that is another keeps no pin, which would not be its
            own; creating the run's folder refuses the change.
        saved: As the run began.
    """
    model = config.model
    if saved.model.name == model.name and not is_commit(model.revision):
        model.revision = saved.model.revision
    data, before = config.data, saved.data
    now = (*data.train_sources, *data.heldout_sources)
    then = (*before.train_sources, *before.heldout_sources)
    same = len(now) == len(then) and len(data.heldout_sources) == len(before.heldout_sources)
    if same and all(_may_stand_for(old, new) for old, new in zip(then, now, strict=True)):
        data.train, data.heldout, data.revision = before.train, before.heldout, before.revision


def _may_stand_for(old: DataSource, new: DataSource) -> bool:
    """Whether a source is the same but for a revision that was not pinned yet."""
    same = old.model_copy(update={"revision": None}) == new.model_copy(update={"revision": None})
    return same and (old.revision == new.revision or not is_commit(new.revision))


def _pinned(given: str | tuple[DataSource, ...], opened: Sequence[Source]) -> tuple[DataSource, ...]:
    named = _listed(given) or (DataSource(source=str(given)),)
    return tuple(
        source.model_copy(update={"revision": found.commit}) if isinstance(found, HubDataset) else source
        for source, found in zip(named, opened, strict=True)
    )


def _listed(given: str | tuple[DataSource, ...] | None) -> tuple[DataSource, ...]:
    return given if isinstance(given, tuple) else ()
