"""Where a version's model may lie, by what the registry is."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from components.register_model.upload import is_reference, place_of_reference
from components.tracking.connection import Connection
from training.config import RegistryConfig
from training.errors import UserError

DATABASE = Connection(None, "sqlite:////x.db", "file:///artifacts", is_server=False)
SERVER = Connection(None, "http://mlflow", None, is_server=True)


@pytest.mark.parametrize(
    ("artifact", "connection", "expected"),
    [
        ("auto", DATABASE, True),
        ("auto", SERVER, False),
        ("copy", DATABASE, False),
        ("reference", SERVER, True),
    ],
)
def test_reference_or_copy(artifact: str, connection: Connection, expected: bool) -> None:
    assert is_reference(connection, RegistryConfig.model_validate({"artifact": artifact})) is expected


def run_at(artifacts: str) -> SimpleNamespace:
    return SimpleNamespace(info=SimpleNamespace(artifact_uri=artifacts))


def test_a_server_whose_artifacts_are_a_folder_takes_a_reference_among_them() -> None:
    own = Path("/store/runs/demo/registered")
    assert place_of_reference(DATABASE, run_at("file:///a"), own) == own
    assert place_of_reference(SERVER, run_at("file:///shared%20disk/1/artifacts"), own) == Path(
        "/shared disk/1/artifacts/model"
    )
    assert place_of_reference(SERVER, run_at("/shared/1/artifacts"), own) == Path("/shared/1/artifacts/model")


@pytest.mark.parametrize("artifacts", ["mlflow-artifacts:/1/abc/artifacts", "s3://bucket/1/abc/artifacts"])
def test_a_server_with_a_store_of_its_own_takes_none(artifacts: str) -> None:
    with pytest.raises(UserError, match="artifact to copy"):
        place_of_reference(SERVER, run_at(artifacts), Path("/x"))
