"""The command `shardline doctor`: is this machine fit to train?"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from training.errors import UserError
from training.health.deep_result import DeepResult, load_deep
from training.health.policy import HealthPolicy, load_policy
from training.health.result import CheckResult, exit_code

_DEEP_EXTRA_S = 300
"""For the ranks to start, beside the seconds that they compute."""

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "not_present": "dim"}


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Let all ranks of this machine compute the same too; takes minutes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    policy: Annotated[
        Path | None, typer.Option(help="YAML with other thresholds and rules for XIDs.", show_default=False)
    ] = None,
    disk: Annotated[
        Path | None,
        typer.Option(help="Folder on the disk to check. Default: the temporary one.", show_default=False),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="How many GPUs there have to be.", show_default=False)
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Another node to reach; may be given again.", show_default=False),
    ] = None,
) -> None:
    """Check this machine: GPUs, kernel log, ports, disk, memory, network, clock, Neuron devices.

    The same checks are made on every node before its ranks start. A check of something that is not there says so;
    it never says that it is healthy. Exits with 201 if a check failed.

    Examples:

        shardline doctor --gpus 8 --disk /mnt/shardline

        shardline doctor --deep --json
    """
    from training.health.__main__ import parse_peer
    from training.health.quick import run_quick

    chosen = load_policy(policy)
    folder = disk or Path(tempfile.gettempdir())
    peers = [parse_peer(text) for text in peer or []]
    results = run_quick(chosen, folder, num_gpus=gpus, peers=peers)
    if deep:
        results += deep_checks(chosen, policy)
    if as_json:
        print(json.dumps([result.as_dict() for result in results], indent=1))
    else:
        _show(results)
    sys.stdout.flush()
    # A check that hangs must not keep this process.
    os._exit(exit_code(results))


def deep_checks(policy: HealthPolicy, path: Path | None) -> list[CheckResult]:
    """Let one rank for each GPU of this machine (two on its CPUs) compute the same, under torchrun.

    Args:
        policy: What they are judged by.
        path: The file that it is from, for the ranks.

    Raises:
        UserError: The ranks do not run here.
    """
    from training.device import processes_per_node

    ranks = processes_per_node()
    with tempfile.TemporaryDirectory(prefix="shardline-doctor-") as folder:
        output = Path(folder) / "deep.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += ["-m", "training.health.rank", str(path or ""), str(output)]
        limit_s = 10 * policy.thresholds.burn_s + _DEEP_EXTRA_S
        try:
            done = subprocess.run(command, timeout=limit_s, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return [CheckResult("deep", "failed", f"the ranks were not done within {limit_s:g} s")]
        result = load_deep(output)
    if result is None:
        last = done.stderr.strip().splitlines()[-1:] or ["they told nothing"]
        raise UserError(f"the ranks of the deep checks ended with exit code {done.returncode}: {last[0]}")
    return judge_deep(result)


def judge_deep(result: DeepResult) -> list[CheckResult]:
    """What a machine's ranks found, as a check."""
    measured = {"tflops": list(result.burn_tflops)}
    if result.blames:
        text = "; ".join(blame.text for blame in result.blames)
        return [CheckResult("deep", "failed", text, measured, "do not train here; have the device replaced")]
    slowest, fastest = min(result.burn_tflops), max(result.burn_tflops)
    text = f"{len(result.burns)} ranks computed the same bits, at {slowest:,.2f} to {fastest:,.2f} TFLOP/s"
    return [CheckResult("deep", "ok", text, measured)]


def _show(results: Sequence[CheckResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("check", "status", "found"):
        table.add_column(column, no_wrap=column != "found")
    for result in results:
        found = Text(result.text)
        if result.advice:
            found.append(f"\n→ {result.advice}", style="italic")
        table.add_row(result.name, Text(result.status.replace("_", " "), style=_STYLES[result.status]), found)
    console.print(Text(results[0].host, style="bold"))
    console.print(table)
    failed = [result.name for result in results if result.status == "failed"]
    if failed:
        console.print(Text(f"not fit to train: {', '.join(failed)}", style="bold red"))
