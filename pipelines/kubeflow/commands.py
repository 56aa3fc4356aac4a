"""The commands `submit` and `schedule`, which talk to Kubeflow Pipelines."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from pipelines.options import OverrideOption, RecipeArgument
from training.errors import UserError

if TYPE_CHECKING:
    from pipelines.kubeflow.schedule import Trigger

_FIRINGS = 3

HostOption = Annotated[
    str,
    typer.Option(
        help="Address of Kubeflow Pipelines. Default: that of the cluster, in a pod or by the kubeconfig.",
        envvar="KF_PIPELINES_ENDPOINT",
        show_envvar=True,
        show_default=False,
    ),
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        help="Your namespace, where Kubeflow has several users. Default: the pod's.",
        envvar="KFP_NAMESPACE",
        show_envvar=True,
        show_default=False,
    ),
]
ExperimentOption = Annotated[str, typer.Option(help="Kubeflow's experiment; made if there is none of the name.")]
AccountOption = Annotated[
    str, typer.Option("--service-account", help="Account of the steps. Default: the installation's.")
]
ClaimOption = Annotated[
    str, typer.Option(help="PersistentVolumeClaim of the store. Default: the graph's, shardline-store.")
]

SecretOption = Annotated[
    str, typer.Option(help="Secret with credentials. Default: the graph's, shardline-credentials.")
]
ImageOption = Annotated[
    str,
    typer.Option(
        help="Image of the steps, as REPOSITORY:TAG, where it is not the published one; steps without a GPU take "
        "REPOSITORY:TAG-steps.",
        envvar="SHARDLINE_IMAGE",
        show_envvar=True,
        show_default=False,
    ),
]


def submit(
    recipe: RecipeArgument = "quickstart",
    overrides: OverrideOption = None,
    host: HostOption = "",
    namespace: NamespaceOption = "",
    experiment: ExperimentOption = "shardline",
    name: Annotated[
        str, typer.Option(help="Name of the run; naming one that is in the store resumes it. Default: made up.")
    ] = "",
    claim: ClaimOption = "",
    secret: SecretOption = "",
    image: ImageOption = "",
    service_account: AccountOption = "",
) -> None:
    """Start a run in a cluster, through Kubeflow Pipelines.

    The recipe is read and checked here, and sent along; paths in it are paths in the cluster. The graph is
    uploaded as a new version if it is not there yet. The token for the server, if it wants one, is taken from
    KFP_TOKEN, or from where Kubeflow puts it in notebooks.

    Examples:

        shardline submit my-recipe.yaml --host http://localhost:8080

        shardline submit quickstart -s data.train=/mnt/shardline/data/train.jsonl -s training.epochs=2

        KFP_TOKEN=… shardline submit big.yaml --host https://kubeflow.example.com/pipeline --namespace my-team
    """
    from pipelines.kubeflow import submit as submission
    from pipelines.kubeflow.client import connect

    changes = overrides or []
    parameters = _parameters(claim, secret)
    # Before anything is asked of a server, so that a mistake is told wherever one is.
    submission.graph_arguments(recipe, changes, parameters)
    run = submission.submit(
        connect(host, namespace),
        recipe,
        changes,
        name=name,
        experiment=experiment,
        service_account=service_account,
        parameters=parameters,
        image=image,
    )
    print(f"Submitted the run {run.name} (version {run.version} of the graph)")
    print(run.url)


def schedule(
    name: Annotated[
        str,
        typer.Argument(help="Name of the schedule. Without one, the schedules are listed.", show_default=False),
    ] = "",
    recipe: Annotated[
        str,
        typer.Argument(
            help="Name of a recipe that ships with Shardline, or path of a YAML file.", show_default=False
        ),
    ] = "",
    cron: Annotated[
        str,
        typer.Option(
            help="When to run: minute, hour, day of month, month, day of week (0 is Sunday); or six fields with "
            "seconds first; or @daily and the like."
        ),
    ] = "",
    every: Annotated[str, typer.Option(help="When to run, as an interval: 6h, 90m, 1d.")] = "",
    overrides: OverrideOption = None,
    server_timezone: Annotated[
        str,
        typer.Option(
            help="Zone that the server reads --cron in: what its administrator set as CRON_SCHEDULE_TIMEZONE.",
            envvar="KFP_TIMEZONE",
            show_envvar=True,
        ),
    ] = "UTC",
    always: Annotated[
        bool, typer.Option("--always", help="Train also if model, data and settings are those of a finished run.")
    ] = False,
    version: Annotated[
        str, typer.Option(help="Version of the graph to stay at. Default: that of this package.")
    ] = "",
    latest: Annotated[
        bool, typer.Option("--latest", help="Make each run from the newest version of the graph instead.")
    ] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Let no further run begin.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="End a pause; the last time that passed in it is made up for.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the schedule; its runs stay.")] = False,
    host: HostOption = "",
    namespace: NamespaceOption = "",
    experiment: ExperimentOption = "shardline",
    claim: ClaimOption = "",
    secret: SecretOption = "",
    image: ImageOption = "",
    service_account: AccountOption = "",
) -> None:
    """Run a recipe again and again in a cluster, through Kubeflow Pipelines; or list, pause or delete schedules.

    Giving the same name again changes the schedule. There is never more than one run of it at a time, and of the
    times that passed in a pause only the last is made up for. Unless --always is given, a run ends early if
    nothing has changed since the last.

    In --set, {scheduled:%Y-%m-%d} stands for the time of the firing in UTC; this needs --latest, because Kubeflow
    fills it in only for schedules of the newest version.

    Examples:

        shardline schedule nightly my-recipe.yaml --cron "30 2 * * *"

        shardline schedule day my-recipe.yaml --every 1d --latest -s "data.train=/data/{scheduled:%Y%m%d}.jsonl"

        shardline schedule nightly --pause

        shardline schedule
    """
    from pipelines.kubeflow.schedule import check_schedule_name
    from pipelines.kubeflow.submit import check_object_name

    actions = [flag for flag, given in (("--pause", pause), ("--resume", resume), ("--delete", delete)) if given]
    if len(actions) > 1:
        raise UserError(f"{' and '.join(actions)} do not go together: give one of them")
    zone = _zone(server_timezone)
    if not name:
        if actions or cron or every:
            raise UserError("no schedule is named: put its name first, as in `shardline schedule nightly --pause`")
        return _list(host, namespace, zone)
    if actions:
        if recipe or cron or every:
            raise UserError(f"{actions[0]} changes nothing else: give the name alone with it")
        return _switch(host, namespace, name, actions[0])
    if latest and version:
        raise UserError("--latest and --version do not go together: give one of them")
    if not recipe:
        raise UserError(
            "no recipe is named: put it after the name, as in `shardline schedule nightly my-recipe.yaml`"
        )
    check_schedule_name(name)
    check_object_name("service account", service_account)
    trigger = _trigger(cron, every)
    parameters = {**_parameters(claim, secret), "skip_unchanged": not always}
    arguments = _scheduled_arguments(recipe, overrides or [], parameters, latest)
    from pipelines.kubeflow import submit as submission
    from pipelines.kubeflow.client import connect
    from pipelines.kubeflow.schedule import Schedule, upsert

    kubeflow = connect(host, namespace)
    graph = submission.find_graph(kubeflow, version) if version else submission.upload_graph(kubeflow, image)
    done = upsert(
        kubeflow,
        Schedule(
            name,
            trigger,
            arguments,
            graph.pipeline_id,
            None if latest else graph.version_id,
            submission.experiment_id(kubeflow, experiment),
            service_account,
            f"shardline schedule {name} {recipe}",
        ),
    )
    what = "the newest version of the graph" if latest else f"version {graph.name} of the graph"
    print(f"The schedule {name} is {done.outcome}: {trigger}, with {what}")
    _say_left(done.left)
    if done.paused:
        print("It is paused; `--resume` lets it go on.")
        return None
    for text in describe_firings(trigger, zone, datetime.now(UTC)):
        print(text)
    return None


def describe_firings(
    trigger: "Trigger", zone: ZoneInfo, now: datetime, local: ZoneInfo | None = None
) -> list[str]:
    """Lines that tell the next firings in the server's zone, and in the user's if it differs.

    Args:
        trigger: When the schedule fires.
        zone: The server's zone.
        now: The time now.
        local: The user's zone; None: that of this machine.
    """
    lines = []
    for moment in trigger.next(_FIRINGS, zone, now):
        there, here = moment.astimezone(zone), moment.astimezone(local)
        same = there.utcoffset() == here.utcoffset()
        lines.append(f"  {_show(there)}" if same else f"  {_show(there)} {zone.key}  =  {_show(here)} here")
    return [("Next runs:" if trigger.cron else "Next runs, about:"), *lines]


def _show(moment: datetime) -> str:
    offset = moment.strftime("%z")
    return f"{moment:%a %Y-%m-%d %H:%M:%S} UTC{offset[:3]}:{offset[3:5]}"


def _scheduled_arguments(
    recipe: str, overrides: list[str], parameters: dict[str, Any], latest: bool
) -> dict[str, Any]:
    """The graph's parameters, with the time of the firing as the server's macro."""
    from pipelines.kubeflow.schedule_time import to_macros, uses_schedule_time
    from pipelines.kubeflow.submit import graph_arguments

    arguments = graph_arguments(recipe, overrides, parameters)
    texts = {key: value for key, value in arguments.items() if isinstance(value, str)}
    if any(map(uses_schedule_time, texts.values())) and not latest:
        raise UserError(
            "{scheduled:…} is filled in only for schedules that follow the newest version of the graph: add "
            "--latest, or name the data without it"
        )
    return {**arguments, **{key: to_macros(text) for key, text in texts.items()}}


def _list(host: str, namespace: str, zone: ZoneInfo) -> None:
    from pipelines.kubeflow.client import connect
    from pipelines.kubeflow.schedule import list_schedules
    from pipelines.kubeflow.submit import find_pipeline

    kubeflow = connect(host, namespace)
    pipeline = find_pipeline(kubeflow)
    found = list_schedules(kubeflow, pipeline, zone, datetime.now(UTC)) if pipeline else []
    if not found:
        print(f"There are no schedules at {kubeflow.host}.", file=sys.stderr)
    for one in found:
        following = (
            "paused"
            if one.paused
            else f"next {_show(one.next.astimezone(zone))}"
            if one.next
            else "next not known"
        )
        print(f"{one.name}  {one.trigger}  {following}")


def _switch(host: str, namespace: str, name: str, action: str) -> None:
    from pipelines.kubeflow import schedule as schedules
    from pipelines.kubeflow.client import connect

    kubeflow = connect(host, namespace)
    if action == "--delete":
        left = schedules.delete(kubeflow, name)
        print(f"The schedule {name} is {'paused' if left else 'deleted'}.")
        _say_left(left)
        return
    schedules.set_paused(kubeflow, name, paused=action == "--pause")
    print(f"The schedule {name} {'is paused' if action == '--pause' else 'goes on'}.")


def _say_left(left: int) -> None:
    if left:
        print(
            "A run of it goes on, which deleting the old schedule might kill; so that one is only paused. The "
            "same command deletes it after the run."
        )


def _trigger(cron: str, every: str) -> "Trigger":
    from pipelines.kubeflow.cron import parse_cron
    from pipelines.kubeflow.schedule import Trigger, parse_every

    if bool(cron) == bool(every):
        raise UserError('say when to run, with either --cron "30 2 * * *" or --every 6h')
    return Trigger(cron=parse_cron(cron)) if cron else Trigger(every_s=parse_every(every))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UserError(f"the time zone '{name}' is not known: give a name such as UTC or Europe/Berlin") from None


def _parameters(claim: str, secret: str) -> dict[str, Any]:
    return {name: value for name, value in {"store_claim": claim, "secret": secret}.items() if value}
