"""The commands about a run's jobs: render, status, logs and stop."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.jobs.terminal import cluster_errors, confirm, connect, folder_in, folder_of_environment, say, write
from pipelines.options import OverrideOption, RecipeArgument
from training.errors import EXIT_FAILED, UserError
from training.run_folder import RunFolder, check_run_name, run_name_from_job

RunArgument = Annotated[str, typer.Argument(help="Name of the run.", show_default=False)]
NamespaceOption = Annotated[
    str,
    typer.Option(
        help="Namespace of the jobs. Default: the pod's, or that of the kubeconfig's context.",
        envvar="KFP_NAMESPACE",
        show_envvar=True,
        show_default=False,
    ),
]
HostOption = Annotated[
    str,
    typer.Option(
        help="Address of Kubeflow Pipelines, where the run was submitted to it.",
        envvar="KF_PIPELINES_ENDPOINT",
        show_envvar=True,
        show_default=False,
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        help="Look at the run's folder in this store instead of a cluster. SHARDLINE_STORE counts if it has "
        "the run.",
        show_default=False,
    ),
]


def render(
    recipe: RecipeArgument = "quickstart",
    overrides: OverrideOption = None,
    name: Annotated[str, typer.Option(help="Name of the run. Default: after the recipe.")] = "",
    attempt: Annotated[int, typer.Option(min=1, help="Number of the attempt.")] = 1,
    kind: Annotated[
        str, typer.Option(help="pytorchjob or trainjob. Default: cluster.launcher, else pytorchjob.")
    ] = "",
    store: Annotated[str, typer.Option(help="Where the pods mount the store.")] = "/mnt/shardline",
    namespace: Annotated[
        str, typer.Option(help="Namespace of the job. Default: cluster.namespace, else default.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write to. Default: the terminal.")
    ] = None,
) -> None:
    """Print the job that a run makes in a cluster, as YAML; no cluster is asked.

    To see what a setting changes, and what pods ask for, before anything starts. The step train makes the same job
    and adds what it alone knows: its own image if the recipe names none, the settings of its task in Kubeflow, and
    its pod as the job's owner. The run's folder, which the pods read, is made by the step preflight.

    Examples:

        shardline render my-recipe.yaml -s parallel.num_nodes=4 -s parallel.procs_per_node=8

        shardline render my-recipe.yaml --kind trainjob --output job.yaml
    """
    from pipelines.jobs.render import render_manifest, write_manifest
    from training.resolve import find_recipe, read_recipe, resolve

    config = resolve(read_recipe(find_recipe(recipe)), overrides or [])
    run = name or run_name_from_job(Path(recipe).stem)
    manifest = render_manifest(config, run, attempt, kind=kind, store=store, namespace=namespace)
    text = write_manifest(manifest, output)
    print(text if output is None else output, end="" if output is None else "\n")


def status(
    run: Annotated[
        str, typer.Argument(help="Name of the run. Without one, all runs are listed.", show_default=False)
    ] = "",
    namespace: NamespaceOption = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run's newest attempt has ended.")
    ] = False,
    store: StoreOption = None,
    host: HostOption = "",
) -> None:
    """Show how far runs are, what they wait for, and why they failed.

    Of a run that has no job yet, or ended before it had one, Kubeflow Pipelines is asked if its address is known.
    With --follow the exit code tells how it ended: 0 for success, 1 for anything else. Loss and speed are those of
    the newest step; in a cluster they are told every ten seconds.

    Examples:

        shardline status

        shardline status my-run --follow

        shardline status my-run --store .shardline
    """
    if run:
        check_run_name(run)
    elif follow:
        raise UserError("no run is named: put its name before --follow, as in `shardline status my-run --follow`")
    from pipelines.jobs.status import follow_run, show_run, show_runs

    with cluster_errors():
        if not run:
            show_runs(namespace, store)
        elif not follow:
            show_run(run, namespace, store, host)
        elif not follow_run(run, namespace, store, host):
            raise typer.Exit(EXIT_FAILED)


def logs(
    run: RunArgument,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt. Default: the newest.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    node: Annotated[
        int | None, typer.Option(min=0, help="Only the pod of this node, counted from 0.", show_default=False)
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only so many last lines of each pod.", show_default=False)
    ] = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Of the job that evaluates, not of the one that trains.")
    ] = False,
    namespace: NamespaceOption = "",
    host: HostOption = "",
) -> None:
    """Print what the pods of a run's job write, each line with its rank.

    Pod after pod, node 0 first; with --follow as it comes, however often the connection breaks. The step train
    keeps a copy of each pod's log in the store, for when the pods are gone. Where the run is before it has a job
    is told beside the output, if the address of Kubeflow Pipelines is known; with --follow its job is waited for.

    Examples:

        shardline logs my-run --tail 20

        shardline logs my-run --follow

        shardline logs my-run --attempt 1 --node 3
    """
    check_run_name(run)
    if follow and tail is not None:
        raise UserError("--tail and --follow do not go together: give one of them")
    from pipelines.jobs.logs import choose_attempt, follow_logs, print_logs
    from pipelines.jobs.submitted import await_job

    with cluster_errors():
        cluster = connect(run, namespace, f"the run is on this machine, with its logs in {{store}}/runs/{run}")
        if not evaluation and (known := await_job(cluster, run, host, namespace, say, wait=follow)):
            raise typer.Exit(EXIT_FAILED if known.succeeded is False else 0)
        job = choose_attempt(cluster, run, attempt, "evaluation" if evaluation else "training")
        if follow:
            follow_logs(cluster, job, write, say, node=node)
        else:
            print_logs(cluster, job, write, say, node=node, tail=tail)


def stop(
    run: RunArgument,
    namespace: NamespaceOption = "",
    host: HostOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Stop a run of `shardline run` on this machine, in this store. SHARDLINE_STORE counts if the run "
            "goes on there.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Stop a run: its ranks save and leave, and a run of the same name goes on from there.

    The run is ended in Kubeflow Pipelines, if its address is known; then the unfinished jobs are deleted, and the
    command waits until their pods are gone. Jobs that have ended stay, with their logs. To stop a run that is
    stopped does nothing.

    Examples:

        shardline stop my-run

        shardline stop my-run --host http://localhost:8080 --namespace my-team --yes

        shardline stop my-run --store .shardline
    """
    check_run_name(run)
    if folder := _folder_to_stop(run, store):
        _stop_here(folder, yes=yes)
    else:
        _stop_in_cluster(run, namespace, host, yes=yes)


def _stop_in_cluster(run: str, namespace: str, host: str, *, yes: bool) -> None:
    from pipelines.jobs.stop import find_stoppable, stop_all, what_goes_on

    with cluster_errors():
        target = find_stoppable(connect(run, namespace), run, host, namespace)
        stopped = True
        if target:
            confirm(f"Stop {target}? Its ranks save first.", yes=yes)
            stopped = stop_all(target, say)
            print(f"The run {run} has {'stopped' if stopped else 'not stopped altogether'}.")
        else:
            print(f"Nothing to stop: {what_goes_on(target)}")
    if target.trouble:
        raise UserError(f"whether the run goes on in Kubeflow Pipelines is not known: {target.trouble}")
    if target and not target.kubeflow:
        print(
            "Only the job was stopped, because no Kubeflow Pipelines server is named: a pipeline that made it "
            "will end as failed. With --host it is ended there too."
        )
    if not stopped:
        raise typer.Exit(EXIT_FAILED)


def _folder_to_stop(run: str, store: Path | None) -> RunFolder | None:
    """The folder of a run to be stopped on this machine; None: look in the cluster."""
    if store is not None:
        return folder_in(store, run)
    from pipelines.jobs.local import graph_of

    folder = folder_of_environment(run)
    return folder if folder is not None and graph_of(folder) else None


def _stop_here(folder: RunFolder, *, yes: bool) -> None:
    from components.jobs.attempts import records
    from pipelines.jobs.local import graph_of, stop_here

    if graph_of(folder) is not None:
        confirm(f"Stop the run {folder.run} on this machine? Its running step saves first.", yes=yes)
        stop_here(folder, say)
        print(f"The run {folder.run} has stopped. `shardline run` with the same settings goes on from here.")
        return
    print(f"Nothing to stop: the run '{folder.run}' does not go on on this machine.")
    for record in records(folder):
        if record.get("namespace") and "ended" not in record:
            print(f"It trains in a cluster: shardline stop {folder.run} --namespace {record['namespace']}")
