"""A cluster whose pods write lines at a steady rate: `python -m tests.doubles.chatty_pods FOLDER`.

Prints the kubeconfig's path, and begins to write once a line is sent to its standard input.
"""

import argparse
import sys
import time

from tests.doubles.cluster import FakeCluster

LABEL, RANK = "training.kubeflow.org/job-name", "training.kubeflow.org/replica-index"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.chatty_pods", description=__doc__)
    parser.add_argument("folder", help="where the kubeconfig goes")
    parser.add_argument("--pods", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5.0, help="lines a second of each pod")
    parser.add_argument("--lines", type=int, default=50, help="lines of each pod")
    parser.add_argument("--cut-every", type=float, default=0.0, help="seconds between two cuts of all streams")
    arguments = parser.parse_args()
    with FakeCluster(arguments.folder) as cluster:
        pods = [
            cluster.run_pod(f"job-worker-{rank}", lines=["begin"], labels={LABEL: "job", RANK: str(rank)})
            for rank in range(arguments.pods)
        ]
        print(cluster.kubeconfig, flush=True)
        if sys.stdin.readline():
            write(cluster, pods, arguments)
            sys.stdin.readline()  # until it is closed


def write(cluster, pods, arguments):
    """Each pod in its own moment, as machines do."""
    begin = time.monotonic()
    next_cut = arguments.cut_every or float("inf")
    for number in range(arguments.lines):
        for rank, pod in enumerate(pods):
            due = begin + (number + rank / len(pods)) / arguments.rate
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            if time.monotonic() - begin > next_cut:
                cluster.cut_logs()
                next_cut += arguments.cut_every
            pod.log(f"step {number} of {pod.name}: loss 1.2345, 123456 tokens/s, 12.34 GiB, and so many s left")
    for pod in pods:
        pod.end()


if __name__ == "__main__":
    main()
