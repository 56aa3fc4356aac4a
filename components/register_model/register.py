"""Log a run to MLflow, make its model a version, and let the gate decide about the alias."""

import json
from dataclasses import dataclass
from typing import Any

from components.register_model import registry
from components.register_model.card import model_card, step_summary
from components.register_model.connection import Connection, connect
from components.register_model.gate import Verdict, judge
from components.register_model.lineage import Lineage, trace
from components.register_model.results import Results, read_results
from components.register_model.tracking import find_or_create_run, log_run, upload_model
from components.step import Step
from training.history import read_history
from training.run_folder import RunFolder
from training.store import about, write_atomically


@dataclass(frozen=True)
class Registration:
    """What the step made.

    Attributes:
        name: Name of the registered model.
        version: Number of the version.
        alias: The alias that the gate guards.
        holder: Number of the version that holds the alias now; None if none does.
        reasons: The gate's.
        tracking_uri: Without credentials.
        mlflow_run_id: The MLflow run.
        summary: For people, in Markdown.
    """

    name: str
    version: str
    alias: str
    holder: str | None
    reasons: tuple[str, ...]
    tracking_uri: str
    mlflow_run_id: str
    summary: str

    @property
    def uri(self) -> str:
        """Address of the version in the registry."""
        return f"models:/{self.name}/{self.version}"

    @property
    def alias_moved(self) -> bool:
        """Whether this version holds the alias."""
        return self.holder == self.version

    def metadata(self) -> dict[str, Any]:
        """What the KFP artifact says of the version."""
        return {
            "name": self.name,
            "version": self.version,
            "alias_moved": self.alias_moved,
            "tracking_uri": self.tracking_uri,
        }

    def record(self) -> dict[str, Any]:
        """What `registration.json` in the run folder holds."""
        return {
            **self.metadata(),
            "alias": self.alias,
            "holder": self.holder,
            "reasons": list(self.reasons),
            "mlflow_run_id": self.mlflow_run_id,
        }


def register_run(step: Step) -> Registration:
    """Register the tuned model of the step's run.

    Idempotent: the MLflow run and the version of an earlier try are found and completed, and a verdict that
    was reached on the same measurements stands, so that a re-run never takes back an alias that moved on.

    Raises:
        UserError: An earlier step is missing, or MLflow cannot be reached or used.
    """
    folder = step.folder
    results = read_results(folder)
    settings = results.config.registry
    lineage = trace(results)
    with connect(settings.tracking_uri, folder.root, step.note) as connection:
        client = connection.client
        run = find_or_create_run(connection, folder, results, lineage.config_fingerprint)
        run_id = run.info.run_id
        card = model_card(folder.run, results, lineage, read_history(folder.events).steps)
        log_run(client, run_id, folder, results, {**lineage.tags(), "mlflow.note.content": card})
        version, verdict = _version(step, connection, run, results, lineage, card)
        holder = registry.alias_holder(client, settings.model_name, settings.alias)
        client.set_terminated(run_id)
    headline = _headline(version, settings.alias, holder)
    registration = Registration(
        name=version.name,
        version=str(version.version),
        alias=settings.alias,
        holder=holder,
        reasons=verdict.reasons,
        tracking_uri=connection.uri,
        mlflow_run_id=run_id,
        summary=step_summary(headline, verdict.reasons, results, connection.uri, run_id),
    )
    write_atomically(folder.path / "registration.json", json.dumps(registration.record(), indent=1))
    step.note(f"{headline}. {' '.join(verdict.reasons)}")
    step.detail = headline
    return registration


def _version(
    step: Step, connection: Connection, run: Any, results: Results, lineage: Lineage, card: str
) -> tuple[Any, Verdict]:
    """The run's version, made or brought up to date, and the gate's verdict on it, carried out."""
    client, settings = connection.client, results.config.registry
    run_id = run.info.run_id
    # Not the whole data set's: more training rows must not keep two models from being compared.
    heldout = about(results.inputs.dataset).get("heldout_fingerprint", results.inputs.dataset.name)
    measured = {
        "heldout_loss": repr(results.tuned_loss),
        "base_loss": repr(results.base_loss),
        "heldout_fingerprint": heldout,
    }
    tags = {**lineage.tags(), **measured, "shardline.run": step.folder.run}
    version = registry.find_version(client, settings.model_name, run_id)
    if version is None:
        source = _source(step, connection, run, step.folder)
        version = registry.create_version(client, settings.model_name, source, run_id, tags, card)
    else:
        verdict = registry.recorded_verdict(version, measured)
        registry.update_version(client, version, tags, card)
        if verdict is not None:
            return version, verdict
    holder = registry.alias_holder(client, settings.model_name, settings.alias)
    champion = None
    if holder is not None and holder != str(version.version):
        champion = registry.champion(client, settings.model_name, holder, heldout)
    verdict = judge(results.base_loss, results.tuned_loss, settings.min_improvement, champion)
    registry.apply_verdict(client, version, settings.alias, verdict)
    return version, verdict


def _source(step: Step, connection: Connection, run: Any, folder: RunFolder) -> str:
    if connection.by_reference:
        return folder.model.as_uri()
    step.note(f"copying the tuned model to the MLflow server {connection.uri} …")
    if run.info.artifact_uri.startswith(("/", "file:")):
        # The server was started without serving artifacts: its clients write where it says.
        step.note(
            f"the MLflow server keeps artifacts in the folder {run.info.artifact_uri}, so they are written on "
            "this machine: others find them only if they share it; better start the server with --serve-artifacts"
        )
    return upload_model(connection, run, folder)


def _headline(version: Any, alias: str, holder: str | None) -> str:
    name = f"{version.name} version {version.version}"
    if holder is None:
        return f"{name}, no {alias} yet"
    if holder == str(version.version):
        return f"{name}, {alias}"
    return f"{name}, {alias} stays with version {holder}"
