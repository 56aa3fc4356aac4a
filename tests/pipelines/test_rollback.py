"""The commands about the registry, on SQLite in the store."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from tests.registering import ReadyRun, aliases, client_of, register
from training.errors import UserError
from training.run_folder import RunFolder


@pytest.fixture
def three(ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch) -> list[RunFolder]:
    """Runs whose versions 1 and 3 took the alias one after the other."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folders = [
        ready_run("first"),
        ready_run("second", passed=False, champion="1"),
        ready_run("third", champion="1"),
    ]
    for folder in folders:
        register(folder)
    monkeypatch.setenv("SHARDLINE_STORE", str(folders[0].root))
    monkeypatch.chdir(folders[0].root.parent)
    return folders


def uri(folder: RunFolder) -> str:
    return f"sqlite:///{folder.root}/mlflow.db"


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_versions_and_back_again(three: list[RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    before = [line.split("\t") for line in call("versions").splitlines()]
    assert before[0] == ["version", "aliases", "run", "loss before", "loss after", "gate", "date"]
    assert [row[:6] for row in before[1:]] == [
        ["3", "candidate, champion", "third", "2.5", "2", "passed"],
        ["2", "-", "second", "2.5", "2", "failed"],
        ["1", "-", "first", "2.5", "2", "passed"],
    ]
    said = call("rollback", "--reason", "answers in the wrong language")
    assert said == "shardline-model: champion moved from version 3 to version 1\n"
    assert aliases(uri(three[0]))["champion"] == "1"
    client = client_of(uri(three[0]))
    taken, restored = (client.get_model_version("shardline-model", number).tags for number in ("3", "1"))
    assert taken["shardline.rolled_back_reason"] == "answers in the wrong language"
    assert taken["shardline.rolled_back_to"] == "1"
    assert taken["shardline.rolled_back_by"]
    assert taken["shardline.rolled_back_at"].endswith("Z")
    assert restored["shardline.restored_from"] == "3"
    with pytest.raises(UserError, match="held the alias champion before version 1: name one with --to"):
        call("rollback")

    # A pipeline that runs the step again does not undo it.
    register(three[2])
    assert aliases(uri(three[0]))["champion"] == "1"
    assert "from version 1 to version 2" in call("rollback", "shardline-model", "--to", "2")


def test_the_recipe_says_where(three: list[RunFolder], tmp_path: Path) -> None:
    recipe = three[0].config_file
    elsewhere = tmp_path / "elsewhere.db"
    shutil.copy(three[0].root / "mlflow.db", elsewhere)
    call("rollback", "--recipe", str(recipe), "-s", f"registry.tracking_uri=sqlite:///{elsewhere}")
    assert aliases(f"sqlite:///{elsewhere}")["champion"] == "1"
    assert aliases(uri(three[0]))["champion"] == "3"


REFUSED = [
    (["rollback", "other"], "there is no registered model 'other' at .*: registered are shardline-model"),
    (["rollback", "--to", "9"], "'shardline-model' has no version 9"),
    (["rollback", "--to", "x"], "'shardline-model' has no version x"),
    (["rollback", "--to", "3"], "version 3 of 'shardline-model' holds the alias champion already"),
    (["rollback", "--alias", "best"], "held the alias best before now: name one with --to"),
    (["rollback", "-s", "registry.alias=x"], "name that with --recipe"),
    (["rollback", "--store", "nowhere"], "nothing was ever registered in the store"),
    (["versions", "--tracking-uri", "http://me:pass@host"], "holds a user or password"),
]


def test_what_is_refused(three: list[RunFolder]) -> None:
    for arguments, said in REFUSED:
        with pytest.raises(UserError, match=said):
            call(*arguments)
    assert aliases(uri(three[0]))["champion"] == "3"


def test_a_version_whose_model_is_gone(three: list[RunFolder]) -> None:
    shutil.rmtree(three[0].path / "registered")
    with pytest.raises(UserError, match="the model of version 1 of 'shardline-model' is gone from file://"):
        call("rollback")
    assert aliases(uri(three[0]))["champion"] == "3"
