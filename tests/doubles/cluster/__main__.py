"""A cluster that runs until it is told to end: `python -m tests.doubles.cluster FOLDER`."""

import argparse
import signal
import threading

from tests.doubles.cluster.cluster import FakeCluster


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.cluster", description=__doc__)
    parser.add_argument("folder", help="where the kubeconfig and the pods' folders go")
    parser.add_argument("--namespace", default="demo")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of the one node")
    parser.add_argument("--trainer", action="store_true", help="install Trainer's kinds as well")
    arguments = parser.parse_args()
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    with FakeCluster(arguments.folder, arguments.namespace) as cluster:
        if arguments.gpus:
            cluster.remove_node("node0")
            cluster.add_node("node0", gpus=arguments.gpus)
        if arguments.trainer:
            cluster.install("trainer.kubeflow.org")
        print(cluster.kubeconfig, flush=True)
        end.wait()


main()
