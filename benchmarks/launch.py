"""From the start of the train step's process to the job in the cluster.

Each time in a fresh process, so that everything that is imported is part of it. The cluster is a stand-in on this
machine; its one node lacks the GPUs that the job asks for, so that no pod competes with the next launch.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.options import Options
from components.cluster.client import connect
from components.cluster.kinds import PYTORCHJOB
from components.cluster.streams import lines
from components.train.component import train
from training.config import RunConfig
from training.run_folder import RunFolder
from training.store import Store

_AT_LEAST = 5
"""Launches: they take little, and each is short enough to be disturbed."""


def measure(options: Options) -> list[Figure]:
    """Launch again and again, each time another run."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, cluster(Path(folder) / "cluster"):
        numbers = range(max(_AT_LEAST, options.repetitions))
        launches = [seconds_to_the_job(Path(folder), number) for number in numbers]
    return [
        Figure("launch.seconds_from_the_call", [each[1] for each in launches]),
        Figure("launch.seconds_from_the_process", [each[0] for each in launches], at_most=2.0),
    ]


def seconds_to_the_job(root: Path, number: int) -> tuple[float, float]:
    """Launch a run: the time to the news of its job, from the process's start and from the function's call.

    Args:
        root: The store.
        number: Of the run.
    """
    run = f"launch-{number}"
    _make_run(root, run)
    source = root / f"{run}.py"
    source.write_text(train.component_spec.implementation.container.command[-1])
    with _news() as news:
        # As in a pod, where kfp leaves out what only builds pipelines.
        environment = {**os.environ, "_KFP_RUNTIME": "true"}
        command = [sys.executable, "-m", "benchmarks.train_step", str(source), str(root), run]
        started = time.time()
        step = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        has_come = bool(next(news, b""))
        seen = time.time()
        step.terminate()
        _, errors = step.communicate()
    if not has_come:
        raise RuntimeError(f"the train step made no job:\n{errors}")
    return seen - started, seen - float((root / f"{run}.called").read_text())


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A stand-in for a cluster, as the one that KUBECONFIG leads to."""
    command = [sys.executable, "-m", "tests.doubles.cluster", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        os.environ["KUBECONFIG"] = process.stdout.readline().strip()
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _news() -> Iterator[Iterator[bytes]]:
    """Changes of jobs, from now on."""
    connection = connect()
    where = (PYTORCHJOB.group, PYTORCHJOB.version, connection.namespace, PYTORCHJOB.plural)
    version = connection.custom.list_namespaced_custom_object(*where)["metadata"]["resourceVersion"]
    answer = connection.custom.list_namespaced_custom_object(
        *where, watch=True, resource_version=version, timeout_seconds=30, _preload_content=False
    )
    try:
        yield lines(answer.stream(2**16))
    finally:
        answer.close()


def _make_run(root: Path, name: str) -> None:
    """A run whose model and data are there, as far as a launcher looks at them."""
    store = Store(root)
    folder = RunFolder(store.root, name)
    config = {
        "model": {"name": "org/model"},
        "data": {"train": "org/data"},
        "training": {"global_batch_size": 16},
        "parallel": {"num_nodes": 2, "procs_per_node": 8},
        "cluster": {"launcher": "pytorchjob", "store_claim": "store", "gpus_per_node": 8},
    }
    folder.create(RunConfig.model_validate(config))
    for kind, about in (("models", {"vocab_size": 32}), ("datasets", {"max_token_id": 31})):
        if store.get(kind, "any") is None:
            with store.publish(kind, "any", about) as staging:
                (staging / "content").write_bytes(b"content")
        folder.save_input("model" if kind == "models" else "dataset", store.path(kind, "any"))
