"""What Trainer fills into a TrainJob, and what it refuses."""

import json

from tests.doubles.cluster.errors import denied_by_webhook, webhook_unreachable
from tests.doubles.cluster.resources import CLUSTER_RUNTIMES
from tests.doubles.cluster.trainer_pods import RESERVED

NAME = "validator.trainjob.trainer.kubeflow.org"
SERVICE = "kubeflow-trainer-controller-manager"
URL = f"https://{SERVICE}.kubeflow-system.svc:443/validate-trainer-kubeflow-org-v1alpha1-trainjob?timeout=10s"


def default_trainjob(job):
    spec = job["spec"]
    spec.setdefault("suspend", False)
    spec.setdefault("managedBy", "trainer.kubeflow.org/trainjob-controller")
    spec["runtimeRef"].setdefault("apiGroup", "trainer.kubeflow.org")
    spec["runtimeRef"].setdefault("kind", "ClusterTrainingRuntime")


def duplicates(job):
    """Entries of the same name in lists that are maps to the server, as field, reason and message."""
    return list(_duplicates(job["spec"], "spec"))


def check_trainjob(job, store, operator_runs):
    if not operator_runs:
        raise webhook_unreachable(NAME, (URL, SERVICE))
    if causes := [*_runtime(job["spec"], store), *_environment(job["spec"])]:
        raise denied_by_webhook(causes, NAME)


def _duplicates(value, path):
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _duplicates(child, f"{path}.{key}")
    elif isinstance(value, list):
        seen = []
        for index, child in enumerate(value):
            name = (
                {key: child[key] for key in ("manager", "name") if key in child}
                if isinstance(child, dict)
                else None
            )
            if name and name in seen:
                yield f"{path}[{index}]", "FieldValueDuplicate", f"Duplicate value: {json.dumps(name)}"
            seen.append(name)
            yield from _duplicates(child, f"{path}[{index}]")


def _runtime(spec, store):
    reference = spec["runtimeRef"]
    if store.find(CLUSTER_RUNTIMES, None, reference["name"]) is None:
        yield (
            f"spec.RuntimeRef: Invalid value: {json.dumps(reference, separators=(',', ':'))}: "
            f'ClusterTrainingRuntime.trainer.kubeflow.org "{reference["name"]}" not found: specified '
            "clusterTrainingRuntime must be created before the TrainJob is created"
        )


def _environment(spec):
    trainer = spec.get("trainer", {})
    reserved = sorted({each["name"] for each in trainer.get("env", [])} & set(RESERVED))
    if reserved and "numProcPerNode" in trainer:
        yield (
            f"spec.trainer.env: Invalid value: {json.dumps(trainer['env'], separators=(',', ':'))}: "
            f"must not have reserved envs, invalid envs configured: [{' '.join(reserved)}]"
        )
