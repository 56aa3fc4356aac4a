"""Log a run to MLflow, make its model a version, and carry out the gate's decision about the alias."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from components.register_model.card import card_facts, model_card, step_summary
from components.register_model.decision import Decision, carry_out, recorded_decision
from components.register_model.example import Example, find_example
from components.register_model.lineage import Lineage, trace
from components.register_model.log_results import log_results
from components.register_model.mlflow_model import Contents, write_mlflow_model
from components.register_model.results import Results, read_results
from components.register_model.upload import is_reference, place_of_reference, upload
from components.step import Step
from components.tracking.connection import Connection, connect
from components.tracking.mirror import Mirror
from components.tracking.registry import alias_holder, create_version, find_version, update_version
from training.config import RegistryConfig
from training.events import read_events
from training.history import read_history
from training.ledger import Ledger
from training.store import about, fingerprint, write_atomically


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

    Idempotent: the MLflow run and the version of an earlier try are found and completed, and a decision that was
    carried out on the same measurements stands, so that a re-run never takes back an alias that moved on.

    Raises:
        UserError: An earlier step is missing, or MLflow cannot be reached or used.
    """
    folder = step.folder
    results = read_results(folder)
    settings = results.config.registry
    lineage = trace(results, folder.identity())
    example = find_example(results.inputs.dataset, folder.model, results.config.data)
    steps = read_history(folder.events).steps
    describe = partial(model_card, folder.run, results, lineage, about(results.inputs.dataset), steps, example)
    contents = _contents(step, results, lineage, describe(), example)
    events = read_events(folder.events)
    with connect(settings.tracking_uri, folder.root, step.note) as connection:
        client = connection.client
        mirror = Mirror(connection, folder, results.config, events[0].time if events else None)
        mirror.settings(results.config)
        mirror.log.tags(lineage.tags())
        mirror.write(events)
        mirror.attempts(events)
        mirror.goodput(Ledger.of(folder))
        log_results(mirror.log, folder, results)
        version, decision = _version(step, connection, mirror.run, results, lineage, contents, describe)
        holder = alias_holder(client, settings.model_name, settings.alias)
        told = {"mlflow.note.content": describe(str(version.version)), "shardline.gate": decision.word}
        mirror.log.tags(told)
        mirror.finish()
    headline = _headline(version, settings.alias, holder)
    run_id = mirror.run.info.run_id
    registration = Registration(
        name=version.name,
        version=str(version.version),
        alias=settings.alias,
        holder=holder,
        reasons=decision.reasons,
        tracking_uri=connection.uri,
        mlflow_run_id=run_id,
        summary=step_summary(headline, decision.reasons, results, connection.uri, run_id),
    )
    write_atomically(folder.path / "registration.json", json.dumps(registration.record(), indent=1))
    step.note(f"{headline}. {' '.join(decision.reasons)}")
    step.detail = headline
    return registration


def _version(
    step: Step,
    connection: Connection,
    run: Any,
    results: Results,
    lineage: Lineage,
    contents: Contents,
    describe: Callable[[str], str],
) -> tuple[Any, Decision]:
    """The run's version, made or brought up to date, and the gate's decision on it, carried out."""
    client, settings = connection.client, results.config.registry
    # Not the whole data set's: more training rows must not keep two models from being compared.
    heldout = about(results.inputs.dataset).get("heldout_fingerprint", results.inputs.dataset.name)
    measured = {
        "heldout_loss": repr(results.tuned.loss.value),
        "base_loss": repr(results.base.loss.value),
        "heldout_fingerprint": heldout,
    }
    decision = results.decision
    judged = fingerprint(
        measured=measured,
        passed=decision.passed,
        reasons=list(decision.reasons),
        champion=decision.champion_version,
    )
    tags = {**lineage.tags(), **measured, "shardline.run": step.folder.run}
    version = find_version(client, settings.model_name, run.info.run_id)
    source = _source(step, connection, run, settings, contents, is_new=version is None)
    if version is None:
        version = create_version(client, settings.model_name, source, run.info.run_id, tags)
    update_version(client, version, tags, describe(str(version.version)))
    if (recorded := recorded_decision(version, judged)) is not None:
        return version, recorded
    compares = results.config.evaluation.champion
    return version, carry_out(client, version, settings.alias, decision, judged, compares=compares)


def _contents(step: Step, results: Results, lineage: Lineage, card: str, example: Example) -> Contents:
    return Contents(
        model=step.folder.model,
        base=results.inputs.model,
        base_name=lineage.model.name,
        example=example,
        max_new_tokens=results.config.evaluation.max_new_tokens,
        card=card,
        card_facts=card_facts(results, lineage),
        about={"shardline.run": step.folder.run, "shardline.run_id": lineage.run_id},
    )


def _source(
    step: Step, connection: Connection, run: Any, settings: RegistryConfig, contents: Contents, *, is_new: bool
) -> str:
    """Write the MLmodel folder, have it where the version's model is to lie, and return its address."""
    own = step.folder.path / "registered"
    if is_reference(connection, settings):
        place = place_of_reference(connection, run, own)
        return write_mlflow_model(contents, place).as_uri()
    if is_new and run.info.artifact_uri.startswith(("/", "file:")):
        # The server was started without serving artifacts: its clients write where it says.
        step.note(
            f"the MLflow server keeps artifacts in the folder {run.info.artifact_uri}, so they are written on "
            "this machine: others find them only if they share it; better start the server with --serve-artifacts"
        )
    return upload(connection, run, write_mlflow_model(contents, own), step.note)


def _headline(version: Any, alias: str, holder: str | None) -> str:
    name = f"{version.name} version {version.version}"
    if holder is None:
        return f"{name}, no {alias} yet"
    if holder == str(version.version):
        return f"{name}, {alias}"
    return f"{name}, {alias} stays with version {holder}"
