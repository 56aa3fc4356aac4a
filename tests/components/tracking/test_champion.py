"""The version that holds the alias, as evaluate finds it in SQLite."""

import shutil
from pathlib import Path

import pytest

from components.tracking.champion import champion_of
from tests.registering import ReadyRun, client_of, register
from training.errors import UserError
from training.run_folder import RunFolder


def test_nothing_was_ever_registered(ready_run: ReadyRun) -> None:
    folder = ready_run(fresh_database=True)
    assert champion_of(folder.config(), folder.root, print) is None
    assert not (folder.root / "mlflow.db").exists()


def test_no_model_or_no_holder(ready_run: ReadyRun) -> None:
    folder = ready_run(passed=False)
    assert champion_of(folder.config(), folder.root, print) is None
    register(folder)
    assert champion_of(folder.config(), folder.root, print) is None


def test_a_version_by_reference_is_used_where_it_lies(ready_run: ReadyRun) -> None:
    first = ready_run("first")
    register(first)
    champion = champion_of(first.config(), first.root, print)
    assert champion is not None
    assert champion.version == "1"
    assert champion.folder == first.path / "registered" / "model"
    assert champion.base_folder is None
    assert (champion.loss, champion.heldout_fingerprint) == (2.0, "e" * 16)
    assert champion.run == "first"
    assert champion.is_of(first)
    second = ready_run("second")
    assert not champion.is_of(second)
    namesake = RunFolder(first.root.parent / "elsewhere", "first")
    namesake.path.mkdir(parents=True)
    assert not champion.is_of(namesake)


def test_its_folder_is_gone(ready_run: ReadyRun) -> None:
    folder = ready_run()
    register(folder)
    shutil.rmtree(folder.path / "registered")
    with pytest.raises(UserError, match="no model any more: give the alias to another version"):
        champion_of(folder.config(), folder.root, print)


def test_a_version_of_the_first_shardline(ready_run: ReadyRun) -> None:
    folder = ready_run()
    made = register(folder)
    client = client_of(made.tracking_uri)
    old = client.create_model_version(made.name, folder.model.as_uri())
    client.set_registered_model_alias(made.name, "champion", old.version)
    champion = champion_of(folder.config(), folder.root, print)
    assert champion is not None
    assert champion.folder == folder.model
    assert (champion.run, champion.loss) == ("", None)


@pytest.mark.parametrize("is_there", [True, False])
def test_the_base_of_an_adapter(ready_run: ReadyRun, is_there: bool, tmp_path: Path) -> None:
    folder = ready_run()
    (folder.model / "model.safetensors").rename(folder.model / "adapter_model.safetensors")
    (folder.model / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    register(folder)
    base = folder.root / "models" / ("m" * 16)
    if is_there:
        champion = champion_of(folder.config(), folder.root, print)
        assert champion is not None
        assert champion.folder == folder.path / "registered" / "peft"
        assert champion.base_folder == base
        return
    base.rename(tmp_path / "away")
    with pytest.raises(UserError, match="is an adapter for org/base at abc123, which is not in the store"):
        champion_of(folder.config(), folder.root, print)
