"""A run of Shardline in MLflow: one run, and below it a nested one for every attempt.

Both are found again by their tags, so whoever logs (the train step while it trains, the register step at the end,
a later resume of either) goes on with the same ones, and nothing is logged twice. The parent shows the training as
a whole: of a step that was computed again after a resume, the value that was logged first. Every attempt shows its
own steps, what it ran on, and how it ended.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from components.tracking.connection import Connection
from components.tracking.curves import (
    TokenCount,
    goodput_group,
    heldout_group,
    milliseconds,
    step_group,
    system_group,
)
from components.tracking.run_log import RunLog
from training.config import RunConfig
from training.errors import UserError
from training.events import Decided, Evaluation, Incident, System, TrainStep
from training.ledger import Ledger
from training.ledger.records import read_attempt
from training.run_folder import RunFolder

_STATUS = {"succeeded": "FINISHED", "interrupted": "KILLED", "preempted": "KILLED"}
"""Of an attempt, by its outcome; any other has failed."""

_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Of the experiment: MLflow calls it one of machine learning. With which pages it opens is the browser's choice:
GenAI at first, then what was chosen at the top left; `?workflowType=machine_learning` in a link says it, too."""


class Mirror:
    """Logs a run's events.

    Args:
        connection: To MLflow.
        folder: The run's folder.
        config: The run's config.
        first_event_at: When the run began, in seconds since the epoch; used when it is new to MLflow.

    Attributes:
        run: The `mlflow.entities.Run`.
        log: Writes to it.
    """

    def __init__(
        self, connection: Connection, folder: RunFolder, config: RunConfig, first_event_at: float | None = None
    ) -> None:
        self._client = connection.client
        self._folder = folder.seen_from("training")
        self._several_nodes = config.parallel.num_nodes > 1
        self._experiment = _experiment(connection, config.registry.experiment)
        self.run = self._open(run_tags(folder), folder.run, first_event_at)
        self.log = RunLog(self._client, self.run.info.run_id)
        self._attempts: dict[int, RunLog] = {}
        self._told: dict[int, dict[str, Any]] = {}
        self._tokens = TokenCount()

    def resume(self) -> None:
        """Show that the run goes on."""
        if self.run.info.status != "RUNNING":
            self._client.update_run(self.run.info.run_id, status="RUNNING")

    def settings(self, config: RunConfig) -> None:
        """Log the config as parameters; what has changed since the run began is told by a tag."""
        changed = self.log.params(dict(flatten(config.model_dump(mode="json"))))
        if changed:
            self.log.tags({"shardline.changed": "\n".join(f"{key}: {value}" for key, value in changed.items())})

    def write(self, events: Iterable[Any]) -> None:
        """Log steps, held-out losses and system metrics; other events are left out."""
        taken = list(events)
        steps = [event for event in taken if isinstance(event, TrainStep)]
        # By attempt before time: clocks of two machines may differ.
        steps.sort(key=lambda event: (event.attempt, event.time))
        heldout = [e for e in taken if isinstance(e, Evaluation) and e.name == "step" and e.step is not None]
        heldout.sort(key=lambda event: (event.attempt, event.time))
        system = [e for e in taken if isinstance(e, System) and e.source.startswith("node-")]
        self._tokens.add(steps)
        self._write(self.log, steps, heldout, system)
        for number in sorted({event.attempt for event in [*steps, *heldout, *system] if event.attempt}):
            self._write(
                self._attempt(number),
                [event for event in steps if event.attempt == number],
                [event for event in heldout if event.attempt == number],
                [event for event in system if event.attempt == number],
            )

    def attempts(self, events: Iterable[Any] = ()) -> None:
        """Bring the nested runs up to date: what every attempt ran on, and how it ended.

        Args:
            events: The run's, of which incidents are told.
        """
        for event in events:
            if isinstance(event, Incident | Decided) and event.source == "train" and event.attempt:
                tags = _incident(event) if isinstance(event, Incident) else _decision(event)
                self._attempt(event.attempt).tags(tags)
        for number in self._folder.attempts():
            record = read_attempt(self._folder, number)
            if not record or record == self._told.get(number):
                continue
            log = self._attempt(number)
            log.params(_facts(record, ("launcher", "num_nodes", "procs_per_node")))
            tags = _facts(record, ("name", "namespace", "outcome"))
            log.tags({f"shardline.{key}": value for key, value in tags.items()})
            if "ended" in record:
                status = _STATUS.get(str(record.get("outcome")), "FAILED")
                log.end(status, milliseconds(record["ended"]))
            self._told[number] = record

    def goodput(self, ledger: Ledger) -> None:
        """Log what the run's time went into until now, its incidents as a table, and the page about both.

        Args:
            ledger: The run's.
        """
        if ledger.totals is None:
            return
        self.log.metrics([goodput_group(ledger.totals)])
        client, run_id = self._client, self.run.info.run_id
        if ledger.incidents:
            table = [asdict(incident) for incident in ledger.incidents]
            client.log_text(run_id, json.dumps(table, indent=1), "incidents.json")
        if self._folder.timeline.is_file():
            client.log_artifact(run_id, str(self._folder.timeline))

    def finish(self) -> None:
        """End the run, and with it the attempts whose launcher died before it could say how they ended."""
        nested = search_by_tags(self._client, self._experiment, {"mlflow.parentRunId": self.run.info.run_id})
        for run in nested:
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, status="KILLED")
        self.log.end("FINISHED")

    def _write(self, log: RunLog, steps: list[TrainStep], heldout: list[Evaluation], system: list[System]) -> None:
        # Of a step or a measurement that came twice, the later.
        latest = {event.step: event for event in steps}
        log.metrics(step_group(latest[step], self._tokens.until(step)) for step in sorted(latest))
        measured = {event.step: event for event in heldout if event.step is not None}
        log.metrics(heldout_group(measured[step], self._tokens.until(step)) for step in sorted(measured))
        began = self.run.info.start_time
        log.metrics(system_group(event, began, self._several_nodes) for event in system)

    def _attempt(self, number: int) -> RunLog:
        if number not in self._attempts:
            run = self._open(
                {
                    "mlflow.parentRunId": self.run.info.run_id,
                    "shardline.attempt": str(number),
                },
                f"{self._folder.run} attempt {number}",
                read_attempt(self._folder, number).get("started"),
            )
            self._attempts[number] = RunLog(self._client, run.info.run_id)
        return self._attempts[number]

    def _open(self, tags: Mapping[str, str], name: str, began: float | None) -> Any:
        if found := search_by_tags(self._client, self._experiment, tags):
            return found[0]
        start = None if began is None else milliseconds(began)
        tags = {**tags, "mlflow.source.name": "shardline", "mlflow.source.type": "JOB"}
        return self._client.create_run(self._experiment, run_name=name, tags=tags, start_time=start)


def run_tags(folder: RunFolder) -> dict[str, str]:
    """The tags by which a run is found again."""
    return {"shardline.run": folder.run, "shardline.run_id": folder.identity()}


def search_by_tags(client: Any, experiment: str, tags: Mapping[str, str]) -> list[Any]:
    """The MLflow runs of an experiment, by its id, that have all of these tags; the newest first."""
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    return list(client.search_runs([experiment], filter_string=query))


def flatten(fields: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Dotted key and text of every leaf: text as it is, the rest as JSON."""
    for key, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _experiment(connection: Connection, name: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = connection.client.get_experiment_by_name(name)
    if experiment is None:
        try:
            created: str = connection.client.create_experiment(
                name, artifact_location=connection.artifacts, tags=_KIND
            )
            return created
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # Another run of the study was first.
        experiment = connection.client.get_experiment_by_name(name)
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow experiment '{name}' is deleted: restore it, or choose another in registry.experiment"
        )
    found: str = experiment.experiment_id
    return found


def _facts(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    return {name: str(record[name]) for name in names if record.get(name) not in (None, "")}


def _incident(incident: Incident) -> dict[str, str]:
    facts = {
        "incident": incident.what,
        "incident_rank": None if incident.rank is None else str(incident.rank),
        "incident_node": incident.node or None,
        "incident_host": incident.host or None,
        "incident_step": None if incident.step is None else str(incident.step),
        "fingerprint": incident.fingerprint or None,
        "exit_code": None if incident.exit_code is None else str(incident.exit_code),
        "evidence": incident.evidence or None,
    }
    return {f"shardline.{key}": value for key, value in facts.items() if value is not None}


def _decision(decided: Decided) -> dict[str, str]:
    excluded = {"shardline.excluded": ", ".join(decided.excluded)} if decided.excluded else {}
    return {"shardline.decision": decided.action, "shardline.decision_reason": decided.reason, **excluded}
