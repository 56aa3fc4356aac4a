"""The `shardline` command."""

import io
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

if Path(sys.argv[0]).name == "shardline":
    # What follows takes half a second, in which Ctrl-C would end in a traceback; `main` takes this back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import typer

from pipelines.doctor import doctor
from pipelines.jobs import commands as job_commands
from pipelines.kubeflow import commands as kubeflow_commands
from pipelines.options import OverrideOption, RecipeArgument
from pipelines.preview import preview
from pipelines.registry import commands as registry_commands
from pipelines.timeline import timeline
from training.errors import EXIT_INVALID, UserError

app = typer.Typer(
    help="Fine-tune Hugging Face causal language models with PyTorch FSDP, as a Kubeflow pipeline.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    recipe: RecipeArgument = "quickstart",
    overrides: OverrideOption = None,
    store: Annotated[
        Path,
        typer.Option(help="Folder for models, data sets and runs.", envvar="SHARDLINE_STORE", show_envvar=True),
    ] = Path(".shardline"),
    name: Annotated[
        str, typer.Option(help="Name of the run; naming an unfinished run resumes it. Default: made up.")
    ] = "",
    new: Annotated[
        bool, typer.Option("--new", help="Begin a new run even if an unfinished one of the same settings exists.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the steps' whole output instead of progress.")
    ] = False,
) -> None:
    """Run the whole graph on this machine: check, download, tokenize, train, evaluate, register.

    A model or data set that is in the store already is not made again, and an interrupted run goes on from its
    newest checkpoint.

    Examples:

        shardline run

        shardline run quickstart -s training.max_steps=5

        shardline run my-recipe.yaml --store /data/shardline
    """
    from pipelines.run_here import RunUnfinished, run_here

    try:
        run_here(recipe, overrides or [], store=store, name=name, new=new, verbose=verbose)
    except RunUnfinished as error:
        raise typer.Exit(error.code) from None


@app.command(name="compile")
def compile_command(
    output: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: the package's pipelines/compiled.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if a committed graph is out of date.")
    ] = False,
    image: Annotated[
        str,
        typer.Option(
            help="Print the graph with this image for its steps instead, as REPOSITORY:TAG; steps without a GPU "
            "take REPOSITORY:TAG-steps."
        ),
    ] = "",
) -> None:
    """Compile the graphs to the YAML that is uploaded to Kubeflow Pipelines.

    Examples:

        shardline compile --image registry.example.com/shardline:1 > finetune.yaml
    """
    from pipelines.compiler import COMPILED, compile_all, drifted, with_image

    if image:
        print(with_image((COMPILED / "finetune.yaml").read_text(encoding="utf-8"), image), end="")
        return
    if check:
        stale = drifted()
        for file in stale:
            print(f"{file} differs from its source: run `shardline compile` and commit it", file=sys.stderr)
        raise typer.Exit(1 if stale else 0)
    for path in compile_all(output or COMPILED):
        print(path)


@app.command()
def config(
    recipe: RecipeArgument = "quickstart",
    overrides: OverrideOption = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print the reference page of all settings instead.")
    ] = False,
) -> None:
    """Print the configuration that a recipe and overrides resolve to, after all checks.

    Sources, later wins: the recipe, then --set overrides (in a pipeline: the parameter `overrides`), then the
    pipeline's own parameters.
    """
    from pipelines.reference import reference_page
    from training.resolve import find_recipe, read_recipe, resolve, to_yaml

    if reference:
        print(reference_page(), end="")
        return
    print(to_yaml(resolve(read_recipe(find_recipe(recipe)), overrides or [])), end="")


app.command()(preview)
app.command()(doctor)
app.command()(kubeflow_commands.submit)
app.command()(kubeflow_commands.schedule)
app.command()(job_commands.render)
app.command()(job_commands.status)
app.command()(timeline)
app.command()(job_commands.logs)
app.command()(job_commands.stop)
app.command()(registry_commands.versions)
app.command()(registry_commands.rollback)


def main() -> None:
    """Run the command; a mistake that the user can mend is told in its own words alone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Hugging Face and MLflow are chatty on import; set before anything imports them.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # A terminal that cannot show a character is no reason to end.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_INVALID)


if __name__ == "__main__":
    main()
