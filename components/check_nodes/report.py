"""The deep checks' report, as Markdown."""

import math

from training.health.deep_result import DeepResult

_FAULTS = {
    "faulty": "faulty",
    "straggler": "slow",
    "link": "no connection",
    "disagreement": "different results",
}


def as_markdown(result: DeepResult) -> str:
    """What each rank and each pair of nodes reached, and who fell short."""
    lines = ["## Nodes", ""]
    if result.blames:
        lines += ["| what | machine | found |", "|---|---|---|"]
        lines += [
            f"| {_FAULTS[blame.fault]} | {', '.join(blame.hosts) or 'cannot be told'} | {blame.text} |"
            for blame in result.blames
        ]
    else:
        lines.append("No machine fell short.")
    lines += [
        "",
        "### Matrix products",
        "",
        "| rank | machine | TFLOP/s | same bits every time |",
        "|---|---|---|---|",
    ]
    for burn, tflops in zip(result.burns, result.burn_tflops, strict=True):
        lines.append(f"| {burn.rank} | {burn.host} | {tflops:,.2f} | {'yes' if burn.is_steady else '**no**'} |")
    if any(result.pairs):
        mib = result.pair_bytes / 2**20
        lines += ["", f"### All-reduces of {mib:g} MiB between two nodes", ""]
        lines += ["| round | machines | GB/s | ms |", "|---|---|---|---|"]
    for number, pairs in enumerate(result.pairs, 1):
        for pair in pairs:
            hosts = " – ".join(result.hosts[node] for node in pair.nodes)
            failed = math.isinf(pair.seconds)
            speed = (
                "failed | – |" if failed else f"{result.gbytes_per_s(pair):,.2f} | {1000 * pair.seconds:,.1f} |"
            )
            lines.append(f"| {number} | {hosts} | {speed}")
    return "\n".join(lines) + "\n"
