"""The command `shardline timeline`: where a run's time went."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.jobs.commands import RunArgument
from pipelines.jobs.terminal import folder_in
from training.errors import UserError
from training.run_folder import check_run_name


def timeline(
    run: RunArgument,
    store: Annotated[
        Path,
        typer.Option(help="The store that the run's folder is in.", envvar="SHARDLINE_STORE", show_envvar=True),
    ] = Path(".shardline"),
) -> None:
    """Show where a run's time went, over all attempts, and write the page about it anew.

    Every second since the first attempt's start is in one bucket; goodput is the share of the steps that count.
    The page shows each attempt on a line, with what failed and what was done about it. Nothing but the store is
    needed, whether the run goes on or not.

    Examples:

        shardline timeline my-run

        shardline timeline my-run --store /mnt/shardline
    """
    check_run_name(run)
    from components.timeline.page import write_timeline
    from components.timeline.words import trouble_line
    from training.ledger import MEANINGS, Ledger, goodput_line
    from training.ledger.sentence import show_seconds

    folder = folder_in(store, run)
    ledger = Ledger.of(folder)
    if ledger.totals is None:
        raise UserError(
            f"the run '{run}' has not begun an attempt yet: look again when its step train has started"
        )
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("bucket", "time", "share"):
        table.add_column(column, justify="left" if column == "bucket" else "right", no_wrap=True)
    table.add_column("what it is", style="dim")
    for bucket, seconds in ledger.seconds.items():
        share = f"{100 * ledger.totals.share(bucket):.1f} %"
        table.add_row(bucket.replace("_", " "), show_seconds(seconds), share, MEANINGS[bucket])
    wall = show_seconds(ledger.totals.wall_s)
    console.print(Text(f"{run}: {goodput_line(ledger.totals)}, {wall} in all"), soft_wrap=True)
    console.print(table)
    for trouble in ledger.incidents:
        console.print(Text(f"attempt {trouble.attempt}: {trouble_line(trouble)}"), soft_wrap=True)
    console.print(Text(f"Page  {write_timeline(folder)}"), soft_wrap=True)
