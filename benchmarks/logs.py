"""What it takes to follow the logs of many pods: of one processor core, of memory, and whether a line is lost.

The cluster is a stand-in in a process of its own, so that only the follower is measured: a fresh process with the
parts that follow a job's logs in a cluster, which write to a file here.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO

from benchmarks.figure import Figure
from benchmarks.options import Options
from components.cluster.client import connect
from components.cluster.job_state import node_rank, pod_end
from components.cluster.kinds import PYTORCHJOB
from components.cluster.log_lines import LogLines
from components.cluster.logs import LogFollower
from components.cluster.pod_watch import PodWatch

PODS = 64
LINES_PER_S = 5
SECONDS = 10
CUT_EVERY_S = 2.5
"""How often all streams break at once."""


def measure(options: Options) -> list[Figure]:
    """Follow the same pods again and again, each time in new processes."""
    rounds = [follow_in_a_process(PODS, SECONDS) for _ in range(options.repetitions)]
    return [
        Figure(f"logs.cpu_share_of_a_core_{PODS}_pods", [each["cpu"] for each in rounds], at_most=0.10),
        Figure("logs.peak_resident_mib", [each["mib"] for each in rounds], at_most=200),
        Figure("logs.lines_lost_or_repeated", [each["wrong"] for each in rounds], at_most=0),
    ]


def follow_in_a_process(pods: int, seconds: int) -> dict[str, float]:
    """What a fresh process comes to that follows so many pods for so long."""
    command = [sys.executable, "-m", "benchmarks.logs", str(pods), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the follower failed:\n{done.stdout}\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(pods: int, seconds: int) -> None:
    """The follower's part: prints what it came to, as JSON."""
    num_lines = LINES_PER_S * seconds
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        command = [
            *(sys.executable, "-m", "tests.doubles.chatty_pods", f"{folder}/cluster", "--pods", str(pods)),
            *("--rate", str(LINES_PER_S), "--lines", str(num_lines), "--cut-every", str(CUT_EVERY_S)),
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
            assert cluster.stdin is not None and cluster.stdout is not None
            os.environ["KUBECONFIG"] = cluster.stdout.readline().strip()
            try:
                print(json.dumps(_follow(Path(folder), cluster.stdin, num_lines)))
            finally:
                cluster.stdin.close()


def _follow(folder: Path, begin: IO[str], num_lines: int) -> dict[str, float]:
    """Follow all pods from before their first line to after their last."""
    cluster = connect()
    watch = PodWatch(cluster, PYTORCHJOB, "job")
    watch.start()
    ranks = {pod["metadata"]["name"]: node_rank(PYTORCHJOB, pod) for pod in watch.pods()}

    def has_ended(name: str) -> bool:
        return any(pod["metadata"]["name"] == name and pod_end(PYTORCHJOB, pod) for pod in watch.pods())

    with (folder / "all.log").open("w") as printed:
        lines = LogLines(ranks.__getitem__, folder / "pods", lambda text: print(text, end="", file=printed))
        started = threading.Semaphore(0)

        def take(pod: str, fresh: list[str]) -> None:
            lines.take(pod, fresh)
            if fresh[0] == "begin":
                started.release()

        follower = LogFollower(cluster, PYTORCHJOB.container, take, has_ended)
        for pod in ranks:
            follower.follow(pod)
        for _ in ranks:
            started.acquire(timeout=30)
        cpu, wall = time.process_time(), time.monotonic()
        begin.write("begin\n")
        begin.flush()
        complete = follower.finish(num_lines / LINES_PER_S + 30)
        share = (time.process_time() - cpu) / (time.monotonic() - wall)
        watch.stop()
        lines.close()
    assert complete, "the logs were not read to their end"
    return {"cpu": share, "mib": peak_resident_mib(), "wrong": wrong(folder / "pods", list(ranks), num_lines)}


def peak_resident_mib() -> float:
    """Of this process; getrusage would count what its parent had when it started this one."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def wrong(folder: Path, pods: list[str], num_lines: int) -> int:
    """How many lines are missing in the pods' files, or there once too often."""
    count = 0
    for pod in pods:
        found = Counter(line.split(":")[0] for line in (folder / f"{pod}.log").read_text().splitlines())
        expected = Counter(["begin", *(f"step {number} of {pod}" for number in range(num_lines))])
        count += (expected - found).total() + (found - expected).total()
    return count


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
