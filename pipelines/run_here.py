"""Runs a recipe on this machine with one call: what `shardline run` does, for scripts and notebooks too."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pipelines.local_run import check_interpreter, choose_run, open_run, run_graph
from pipelines.summary import print_summary
from training.errors import EXIT_INTERRUPTED
from training.resolve import find_recipe, read_recipe, resolve
from training.run_folder import RunFolder

_NOTEBOOK_WIDTH = 110


class RunUnfinished(RuntimeError):
    """A run did not get to its end; why has been shown.

    Attributes:
        code: Exit code of the graph.
    """

    def __init__(self, run: str, code: int) -> None:
        what = "was stopped and goes on with the same call" if code == EXIT_INTERRUPTED else "failed; see above"
        super().__init__(f"the run {run} {what}")
        self.code = code


def run_here(
    recipe: str = "quickstart",
    overrides: Sequence[str] = (),
    *,
    store: str | Path = ".shardline",
    name: str = "",
    new: bool = False,
    verbose: bool = False,
) -> RunFolder:
    """Run the whole graph on this machine, showing how it goes; Ctrl-C saves and leaves.

    Args:
        recipe: Name of a recipe that ships with Shardline, or path of a YAML file.
        overrides: `section.field=value` texts.
        store: Folder for models, data sets and runs.
        name: Name of the run; naming an unfinished run resumes it. Empty: made up.
        new: Begin a new run even if an unfinished one of the same settings exists.
        verbose: Show the steps' whole output instead of progress.

    Returns:
        The run's folder, with its model, its evaluation and its events.

    Raises:
        UserError: The recipe or a setting is wrong, the store cannot be written, or another process works on the
            run.
        RunUnfinished: A step failed, or the run was stopped.
    """
    changes = list(overrides)
    config = resolve(read_recipe(find_recipe(recipe)), changes)
    check_interpreter()
    root = Path(store).expanduser().absolute()
    held = open_run(root, name) if name else choose_run(root, recipe, config, fresh=new)
    run = held.folder.run
    console = _console()
    with held.lock:
        verb = "Resuming" if held.resumes else "Starting"
        console.print(f"{verb} the run [bold]{run}[/bold] in {escape(str(root))}", highlight=False, soft_wrap=True)
        code = run_graph(held, recipe, changes, console, verbose=verbose)
    print_summary(console, root, run, code)
    if code != 0:
        raise RunUnfinished(run, code)
    return held.folder


def _console() -> Console:
    console = Console()
    if not console.is_jupyter:
        return console
    # Lines of one text; else each would become an output of its own. And no terminal, whatever the kernel's
    # environment says: a live display needs one that moves its cursor.
    return Console(force_jupyter=False, force_terminal=False, color_system="standard", width=_NOTEBOOK_WIDTH)
