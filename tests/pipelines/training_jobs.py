"""Jobs of runs in the cluster's double, whose pods run a short shell command in place of the training."""

import json

from components.cluster.client import connect
from components.cluster.jobs import annotate_job, create_job
from components.cluster.kinds import KINDS, PROGRESS, PYTORCHJOB
from pipelines.jobs.render import render_manifest
from training.config import RunConfig

UNTIL_STOPPED = "trap 'echo saved; exit 143' TERM; echo begins; while :; do sleep 0.05; done"


def start_job(cluster, run, command, attempt=1, nodes=1, ready=True, kind="pytorchjob", **settings):
    """Make the job of an attempt; `settings` are of the section `cluster`."""
    config = RunConfig.model_validate(
        {
            "model": {"name": "org/tiny"},
            "data": {"train": "org/data"},
            "parallel": {"num_nodes": nodes, "procs_per_node": 1},
            "cluster": {"gpus_per_node": 0, "grace_s": 30, **settings},
        }
    )
    manifest = render_manifest(
        config, run, attempt, kind=kind, store="/mnt/shardline", namespace=cluster.namespace
    )
    spec = manifest["spec"]
    if kind == "trainjob":
        container = spec["trainer"]
    else:
        (container,) = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    # The run's folder stays the last word, as in the real one.
    container["command"] = ["sh", "-c", command, container["command"][-1]]
    create_job(connect(), KINDS[kind], manifest)
    name = manifest["metadata"]["name"]
    if ready:
        cluster.wait(lambda: len(ready_pods(cluster, name)) == nodes or is_over(cluster, name))
    return name


def report_step(name, step, **progress):
    """Annotate a job as its launcher does."""
    defaults = {"num_steps": 100, "loss": 2.5, "tokens_per_s": 12345, "seconds_left": 200, "time": 0}
    told = {"step": step, **defaults, **progress}
    annotate_job(connect(), PYTORCHJOB, name, {PROGRESS: json.dumps(told)})


def ready_pods(cluster, job):
    return [
        pod
        for pod in cluster.pods(job)
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]


def is_over(cluster, name):
    conditions = (cluster.job(name).get("status") or {}).get("conditions") or []
    return any(c["type"] in ("Succeeded", "Complete", "Failed") and c["status"] == "True" for c in conditions)


def end(cluster, name):
    cluster.wait(lambda: is_over(cluster, name))
