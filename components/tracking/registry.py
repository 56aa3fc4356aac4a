"""Versions and aliases of a registered model."""

from typing import Any

from components.tracking.texts import shortened, shortened_card

CANDIDATE = "candidate"
"""Alias of the newest version, whatever the gate says of it."""


def find_model(client: Any, name: str) -> Any:
    """The registered model of this name, or None."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def find_version(client: Any, name: str, run_id: str) -> Any:
    """The newest version that an MLflow run made, or None."""
    versions = [v for v in client.search_model_versions(f"run_id = '{run_id}'") if v.name == name]
    return max(versions, key=lambda version: int(version.version), default=None)


def get_version(client: Any, name: str, number: str) -> Any:
    """The version of this number, or None."""
    from mlflow.exceptions import MlflowException

    if not (number.isascii() and number.isdigit()):
        return None
    try:
        return client.get_model_version(name, number)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def create_version(client: Any, name: str, source: str, run_id: str, tags: dict[str, str]) -> Any:
    """Make a version, and the registered model if it is the first.

    Args:
        client: The `MlflowClient`.
        name: Name of the registered model.
        source: Where the model lies.
        run_id: The MLflow run that made it.
        tags: Tags of the version.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description="Causal language models fine-tuned by Shardline")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(name, source, run_id, tags=_short(tags))


def update_version(client: Any, version: Any, tags: dict[str, str], card: str) -> None:
    """Bring tags and description of a version up to date."""
    for key, value in _short(tags).items():
        if version.tags.get(key) != value:
            client.set_model_version_tag(version.name, version.version, key, value)
    client.update_model_version(version.name, version.version, description=shortened_card(card))


def alias_holder(client: Any, name: str, alias: str) -> str | None:
    """Number of the version that holds an alias."""
    holder = client.get_registered_model(name).aliases.get(alias)
    return None if holder is None else str(holder)


def _short(tags: dict[str, str]) -> dict[str, str]:
    return {key: shortened(value) for key, value in tags.items()}
