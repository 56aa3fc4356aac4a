"""Versions and aliases of the registered model."""

from typing import Any

from components.register_model.gate import Champion, Verdict

CANDIDATE = "candidate"
"""Alias of the newest version, whatever the gate says of it."""

_GATE = "shardline.gate"
_REASONS = "shardline.gate_reasons"


def find_version(client: Any, name: str, run_id: str) -> Any:
    """The version that an MLflow run made, or None."""
    versions = [v for v in client.search_model_versions(f"run_id = '{run_id}'") if v.name == name]
    return max(versions, key=lambda version: int(version.version), default=None)


def create_version(client: Any, name: str, source: str, run_id: str, tags: dict[str, str], card: str) -> Any:
    """Make a version, and the registered model if it is the first.

    Args:
        client: The `MlflowClient`.
        name: Name of the registered model.
        source: Where the model lies.
        run_id: The MLflow run that made it.
        tags: Tags of the version.
        card: Its description, in Markdown.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description="Causal language models fine-tuned by Shardline")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(name, source, run_id, tags=tags, description=card)


def update_version(client: Any, version: Any, tags: dict[str, str], card: str) -> None:
    """Bring tags and description of a version up to date."""
    for key, value in tags.items():
        client.set_model_version_tag(version.name, version.version, key, value)
    client.update_model_version(version.name, version.version, description=card)


def alias_holder(client: Any, name: str, alias: str) -> str | None:
    """Number of the version that holds an alias."""
    holder = client.get_registered_model(name).aliases.get(alias)
    return None if holder is None else str(holder)


def champion(client: Any, name: str, holder: str, heldout_fingerprint: str) -> Champion:
    """What the gate has to know of the version that holds the alias."""
    tags = client.get_model_version(name, holder).tags
    loss = None
    if tags.get("heldout_fingerprint") == heldout_fingerprint:
        try:
            loss = float(tags.get("heldout_loss", "nan"))
        except ValueError:
            loss = None  # tags can be edited by hand
    return Champion(holder, loss)


def recorded_verdict(version: Any, measured: dict[str, str]) -> Verdict | None:
    """The verdict that an earlier run of the step reached on the same measurements, or None."""
    if _GATE not in version.tags or any(version.tags.get(key) != value for key, value in measured.items()):
        return None
    return Verdict(version.tags[_GATE] == "passed", tuple(version.tags.get(_REASONS, "").splitlines()))


def apply_verdict(client: Any, version: Any, alias: str, verdict: Verdict) -> None:
    """Move the aliases and record the verdict on the version."""
    client.set_registered_model_alias(version.name, CANDIDATE, version.version)
    if verdict.passed:
        client.set_registered_model_alias(version.name, alias, version.version)
    # Last: a verdict that is recorded has been carried out.
    client.set_model_version_tag(version.name, version.version, _REASONS, "\n".join(verdict.reasons))
    client.set_model_version_tag(version.name, version.version, _GATE, "passed" if verdict.passed else "failed")
