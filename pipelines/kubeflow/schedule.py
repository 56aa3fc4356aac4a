"""Schedules of the graph: recurring runs of Kubeflow Pipelines, kept by name.

The API cannot change a recurring run, and takes several of one name. Here a name stands for the newest; what a
change left behind is removed once none of its runs goes on, because deleting a recurring run may take its runs
with it (kubeflow/pipelines#7421).
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Literal

import kfp_server_api

from pipelines.kubeflow.client import Kubeflow, Missing, named
from pipelines.kubeflow.cron import Cron, parse_cron
from pipelines.kubeflow.runs import ENDED, newest_runs
from training.credentials import shown
from training.errors import UserError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHORTEST_S = 60
_LONGEST_S = 3650 * 86400
_NAME = r"[A-Za-z0-9][\w .:/()+-]{0,99}"
"""The server makes a Kubernetes name of its letters and digits, and shows it in one line."""

_LOOKED_THROUGH = 200


@dataclass(frozen=True)
class Trigger:
    """When runs begin: at the times of a cron expression, or every so many seconds since the schedule was made."""

    cron: Cron | None = None
    every_s: int | None = None

    def next(self, count: int, zone: tzinfo, now: datetime) -> list[datetime]:
        """The next firings; those of an interval count from `now`."""
        if self.every_s is not None:
            return [now + timedelta(seconds=self.every_s * n) for n in range(1, count + 1)]
        assert self.cron is not None
        times: list[datetime] = []
        while len(times) < count:
            following = self.cron.after(times[-1] if times else now, zone)
            if following is None:
                break
            times.append(following)
        return times

    def __str__(self) -> str:
        return self.cron.text if self.cron else f"every {self.every_s} s"


@dataclass(frozen=True)
class Schedule:
    """What a schedule is to be.

    Attributes:
        name: Its name.
        trigger: When runs begin.
        parameters: The graph's parameters; `run` stays empty, so that each run is named after its job.
        pipeline_id: The graph's pipeline.
        version_id: The version that all runs are made from; None: each run takes the newest of its time.
        experiment_id: The experiment that its runs are shown under.
        service_account: Account that the steps run under; empty: the installation's.
        description: For people.
    """

    name: str
    trigger: Trigger
    parameters: Mapping[str, Any]
    pipeline_id: str
    version_id: str | None
    experiment_id: str
    service_account: str = ""
    description: str = ""


@dataclass(frozen=True)
class Upserted:
    """What an upsert did.

    Attributes:
        outcome: Whether the schedule was made, replaced, or is as it was.
        paused: Whether it is paused, which a change leaves as it was.
        left: How many former ones stay, paused, because a run of theirs goes on.
    """

    outcome: Literal["created", "replaced", "unchanged"]
    paused: bool
    left: int


def parse_every(text: str) -> int:
    """Seconds of an interval such as 6h, 90m, 1d or 1h30m.

    Raises:
        UserError: It is of another form, shorter than a minute or longer than ten years.
    """
    compact = text.replace(" ", "").lower()
    if not re.fullmatch(r"(\d+[smhd])+", compact):
        raise UserError(f"the interval '{text}' is not of the form 6h, 90m, 1d or 1h30m (s, m, h, d)")
    seconds = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", compact))
    if seconds < _SHORTEST_S:
        raise UserError(f"the interval '{text}' is too short: give at least {_SHORTEST_S}s")
    if seconds > _LONGEST_S:
        raise UserError(f"the interval '{text}' is too long: give at most {_LONGEST_S // 86400}d")
    return seconds


def check_schedule_name(name: str) -> None:
    """Check that a schedule can have this name.

    Raises:
        UserError: Says what is allowed.
    """
    if not re.fullmatch(_NAME, name) or name != name.strip():
        raise UserError(
            f"the schedule's name {shown(name)} is not valid: give at most 100 letters, digits, spaces and "
            "._:/()+-, beginning with a letter from A to Z or a digit"
        )


def upsert(kubeflow: Kubeflow, wanted: Schedule) -> Upserted:
    """Make the schedule of this name be as wanted; one that is so already is left alone.

    Raises:
        UserError: The name cannot be, the server refuses, or somebody else changed it at the same time.
    """
    check_schedule_name(wanted.name)
    former = _named(kubeflow, wanted.name)
    current = former[0] if former else None
    if current is not None and _is_as(current, wanted):
        return Upserted("unchanged", _is_paused(current), _remove_idle(kubeflow, former[1:]))
    paused = current is not None and _is_paused(current)
    # Never two that are enabled, or both would fire. Nor a time that none sees: the new one counts from its
    # creation, so a firing between the pause of the old one and its own start is made up for when it is enabled.
    made = _create(kubeflow, wanted)
    if current is not None and not paused:
        _set_enabled(kubeflow, current, enabled=False)
        if _has_fired(kubeflow, current, since=made.created_at):
            # The new one would make up for that time too; one that is made after it does not.
            _delete(kubeflow, made)
            made = _create(kubeflow, wanted)
    if not paused:
        _enable_alone(kubeflow, made)
    return Upserted("replaced" if current else "created", paused, _remove_idle(kubeflow, former))


def set_paused(kubeflow: Kubeflow, name: str, *, paused: bool) -> None:
    """Pause a schedule, or let it go on; a run that goes on is left alone.

    Of the times that passed in a pause, the server makes up for the last one, at once.

    Raises:
        UserError: There is none of the name, or the server refuses.
    """
    newest, *former = _known(kubeflow, name)
    if paused:
        for one in (newest, *former):
            _set_enabled(kubeflow, one, enabled=False)
    else:
        _set_enabled(kubeflow, newest, enabled=True)


def delete(kubeflow: Kubeflow, name: str) -> int:
    """Delete a schedule; its runs stay.

    Returns:
        How many recurring runs are only paused, because a run of theirs goes on and might be killed.

    Raises:
        UserError: There is none of the name, or the server refuses.
    """
    known = _known(kubeflow, name)
    for one in known:
        _set_enabled(kubeflow, one, enabled=False)
    return _remove_idle(kubeflow, known)


@dataclass(frozen=True)
class Listed:
    """A schedule as it is on the server."""

    name: str
    trigger: str
    next: datetime | None
    paused: bool
    description: str


def list_schedules(kubeflow: Kubeflow, pipeline_id: str, zone: tzinfo, now: datetime) -> list[Listed]:
    """The schedules of a pipeline by name, with their next firing, cron expressions read in `zone`.

    Raises:
        UserError: The server refuses.
    """
    newest: dict[str, Any] = {}
    for one in _all(kubeflow):
        reference = one.pipeline_version_reference
        if reference is not None and reference.pipeline_id == pipeline_id:
            known = newest.setdefault(one.display_name, one)
            if _is_paused(known) and not _is_paused(one):
                newest[one.display_name] = one
    return [_listed(newest[name], zone, now) for name in sorted(newest)]


def _listed(one: Any, zone: tzinfo, now: datetime) -> Listed:
    every, cron = _every_s(one), _cron(one)
    paused = _is_paused(one)
    following = None
    if every:
        gone = (now - one.created_at).total_seconds()
        following = one.created_at + timedelta(seconds=every * (gone // every + 1))
    elif cron and len(cron.split()) == 6:
        # Others may have written what is not known here, or five fields, which the server reads in another way.
        with contextlib.suppress(UserError):
            following = parse_cron(cron).after(now, zone)
    text = str(Trigger(every_s=every)) if every else cron or "no times"
    return Listed(one.display_name, text, None if paused else following, paused, one.description or "")


def _every_s(one: Any) -> int | None:
    periodic = one.trigger.periodic_schedule if one.trigger else None
    return int(periodic.interval_second or 0) or None if periodic else None


def _cron(one: Any) -> str | None:
    schedule = one.trigger.cron_schedule if one.trigger else None
    return schedule.cron or None if schedule else None


def _create(kubeflow: Kubeflow, wanted: Schedule) -> Any:
    """Create it, paused.

    Not by the SDK's `create_recurring_run`, which demands a version: without one, a server of 2.5 or later takes
    the newest for each run.
    """
    trigger = wanted.trigger
    body = kfp_server_api.V2beta1RecurringRun(
        display_name=wanted.name,
        description=wanted.description,
        experiment_id=wanted.experiment_id,
        pipeline_version_reference=kfp_server_api.V2beta1PipelineVersionReference(
            pipeline_id=wanted.pipeline_id, pipeline_version_id=wanted.version_id
        ),
        runtime_config=kfp_server_api.V2beta1RuntimeConfig(parameters=dict(wanted.parameters)),
        trigger=kfp_server_api.V2beta1Trigger(
            cron_schedule=kfp_server_api.V2beta1CronSchedule(cron=trigger.cron.text) if trigger.cron else None,
            periodic_schedule=None
            if trigger.cron
            else kfp_server_api.V2beta1PeriodicSchedule(interval_second=str(trigger.every_s)),
        ),
        # Two runs of one schedule would train on the same devices at a time.
        max_concurrency="1",
        # Else a schedule that was paused for a week would start all the week's runs.
        no_catchup=True,
        mode=kfp_server_api.RecurringRunMode.DISABLE,
        service_account=wanted.service_account or None,
    )
    api = kubeflow.recurring_runs
    return kubeflow.call(api.recurring_run_service_create_recurring_run, recurring_run=body)


def _is_as(one: Any, wanted: Schedule) -> bool:
    reference = one.pipeline_version_reference
    return (
        reference is not None
        and reference.pipeline_id == wanted.pipeline_id
        and (reference.pipeline_version_id or None) == wanted.version_id
        and _cron(one) == (wanted.trigger.cron.text if wanted.trigger.cron else None)
        and _every_s(one) == wanted.trigger.every_s
        and ((one.runtime_config.parameters if one.runtime_config else None) or {}) == dict(wanted.parameters)
        and one.experiment_id == wanted.experiment_id
        # The server fills in its own account where none was asked for.
        and (not wanted.service_account or one.service_account == wanted.service_account)
        and int(one.max_concurrency) == 1
        and bool(one.no_catchup)
    )


def _is_paused(one: Any) -> bool:
    # Its status is what the controller saw last, which may be a while ago.
    return bool(one.mode == kfp_server_api.RecurringRunMode.DISABLE)


def _all(kubeflow: Kubeflow, **options: Any) -> Any:
    """Recurring runs, newest first."""
    listing = kubeflow.recurring_runs.recurring_run_service_list_recurring_runs
    options = {"namespace": kubeflow.namespace, "sort_by": "created_at desc", **options}
    return kubeflow.each(listing, "recurring_runs", **options)


def _named(kubeflow: Kubeflow, name: str) -> list[Any]:
    """Those of a name: the one that counts first, which is the one that is enabled, or the newest."""
    found = list(_all(kubeflow, filter=named("display_name", name)))
    return sorted(found, key=_is_paused)


def _known(kubeflow: Kubeflow, name: str) -> list[Any]:
    known = _named(kubeflow, name)
    if not known:
        raise UserError(
            f"there is no schedule '{name}' at {kubeflow.host}: `shardline schedule` lists those there are"
        )
    return known


def _set_enabled(kubeflow: Kubeflow, one: Any, *, enabled: bool) -> None:
    api = kubeflow.recurring_runs
    switch = (
        api.recurring_run_service_enable_recurring_run
        if enabled
        else api.recurring_run_service_disable_recurring_run
    )
    # Somebody else may have deleted it at this moment; then there is nothing to pause.
    with contextlib.suppress(*(() if enabled else (Missing,))):
        kubeflow.call(switch, recurring_run_id=one.recurring_run_id)


def _delete(kubeflow: Kubeflow, one: Any) -> None:
    with contextlib.suppress(Missing):
        kubeflow.call(
            kubeflow.recurring_runs.recurring_run_service_delete_recurring_run,
            recurring_run_id=one.recurring_run_id,
            # Servers before 2.16 do not know it, hence the look for runs that go on.
            propagation_policy=kfp_server_api.V2beta1DeletePropagationPolicy.ORPHAN,
        )


def _enable_alone(kubeflow: Kubeflow, made: Any) -> None:
    """Enable it; of those that two people enable at the same time, both let only the newest fire.

    Raises:
        UserError: Another counts.
    """
    try:
        _set_enabled(kubeflow, made, enabled=True)
    except Missing:
        enabled, newest = [], None  # somebody took it for what an earlier change had left behind
    else:
        enabled = [one for one in _named(kubeflow, made.display_name) if not _is_paused(one)]
        newest = max(enabled, key=lambda one: (one.created_at, one.recurring_run_id), default=None)
    others = [one for one in enabled if one is not newest]
    for one in others:
        _set_enabled(kubeflow, one, enabled=False)
    _remove_idle(kubeflow, others)
    if newest is None or newest.recurring_run_id != made.recurring_run_id:
        raise UserError(
            f"somebody else changed the schedule '{made.display_name}' at the same time, and theirs counts: see "
            "`shardline schedule`, and give the command again if yours should"
        )


def _remove_idle(kubeflow: Kubeflow, former: list[Any]) -> int:
    """Delete those of which no run goes on; returns how many are left."""
    if not former:
        return 0
    busy = {run.recurring_run_id for run in _recent(kubeflow) if run.state not in ENDED}
    idle = [one for one in former if one.recurring_run_id not in busy]
    for one in idle:
        _delete(kubeflow, one)
    return len(former) - len(idle)


def _has_fired(kubeflow: Kubeflow, one: Any, since: datetime) -> bool:
    return any(
        run.recurring_run_id == one.recurring_run_id and (run.scheduled_at or run.created_at) > since
        for run in _recent(kubeflow)
    )


def _recent(kubeflow: Kubeflow) -> Any:
    return islice(newest_runs(kubeflow), _LOOKED_THROUGH)
