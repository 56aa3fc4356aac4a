"""What is checked and changed before a job is stored: the operator's webhook, and Kueue's."""

import re

from tests.doubles.cluster.errors import denied_by_webhook, webhook_unreachable
from tests.doubles.cluster.resources import QUEUES

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
NAME_ADVICE = (
    "should match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    f"validation is '{NAME}')"
)
REPLICA_TYPES = ("Master", "Worker")


def check_pytorchjob(job, operator_runs):
    """The validating webhook of the training operator, which is away when the operator is."""
    if not operator_runs:
        raise webhook_unreachable()
    if causes := [*_name(job["metadata"]["name"]), *_spec(job["spec"])]:
        raise denied_by_webhook(causes)


def queue_job(job, store):
    """Kueue's mutating webhook: a job with a queue waits until it is admitted."""
    if (job["metadata"].get("labels") or {}).get(QUEUE_LABEL) and store.list(QUEUES):
        if job["kind"] == "TrainJob":
            job["spec"]["suspend"] = True
        else:
            job["spec"].setdefault("runPolicy", {})["suspend"] = True


def _name(name):
    if len(name) > 63:
        return [f'metadata.name: Invalid value: "{name}": should match: must be no more than 63 characters']
    if not re.fullmatch(NAME, name):
        return [f'metadata.name: Invalid value: "{name}": {NAME_ADVICE}']
    return []


def _spec(spec):
    replicas = spec["pytorchReplicaSpecs"]
    if "elasticPolicy" in spec and "Worker" not in replicas:
        yield "spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used"
    for kind, replica in replicas.items():
        path = f"spec.pytorchReplicaSpecs[{kind}]"
        if kind not in REPLICA_TYPES:
            supported = ", ".join(f'"{each}"' for each in REPLICA_TYPES)
            yield f'{path}: Unsupported value: "{kind}": supported values: {supported}'
            continue
        if kind == "Master" and replica.get("replicas", 1) != 1:
            yield f"{path}.replicas: Forbidden: must be 1"
        yield from _containers(f"{path}.template.spec.containers", replica)


def _containers(path, replica):
    containers = replica.get("template", {}).get("spec", {}).get("containers") or []
    if not any(container.get("name") == "pytorch" for container in containers):
        yield f"{path}: Required value: must have at least one container with name pytorch"
    for index, container in enumerate(containers):
        if not container.get("image"):
            yield f"{path}[{index}].image: Required value: must be required"
