"""`TrainingJob` → PyTorchJob (`kubeflow.org/v1`, training operator 1.9)."""

from typing import Any

from components.cluster.kinds import PYTORCHJOB
from components.jobs.job import TrainingJob
from components.jobs.render import pod

RENDEZVOUS_PORT = 23456
"""The operator's own default; its service opens it."""

_HYPERPOD = "sagemaker.amazonaws.com"


def render_pytorchjob(job: TrainingJob, namespace: str) -> dict[str, Any]:
    """The manifest of a PyTorchJob.

    Its nodes are workers only, with elastic bounds that are all the same number. A master beside them would get
    them an init container from a public registry, and without bounds the operator gives workers no address to
    meet at. Nothing is restarted in place: the next attempt is another job.

    Args:
        job: The attempt; it has pod settings.
        namespace: Where the job will be.
    """
    assert job.pods is not None
    scheduling = job.scheduling
    metadata = pod.without_empty(
        {
            "name": job.name,
            "namespace": namespace,
            "labels": {**pod.labels(job), **_kueue(job)},
            "annotations": {**job.pods.annotations, **_hyperpod(job)},
            "ownerReferences": [scheduling.owner] if scheduling.owner else [],
        }
    )
    worker = {
        "replicas": job.num_nodes,
        "restartPolicy": "Never",
        "template": {
            "metadata": {"labels": pod.labels(job), "annotations": pod.annotations(job)},
            "spec": _pod_spec(job),
        },
    }
    return {
        "apiVersion": PYTORCHJOB.api_version,
        "kind": PYTORCHJOB.kind,
        "metadata": metadata,
        "spec": {
            "nprocPerNode": str(job.procs_per_node),
            "elasticPolicy": _elastic_policy(job),
            "runPolicy": _run_policy(job),
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }


def _elastic_policy(job: TrainingJob) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "minReplicas": job.num_nodes,
        "maxReplicas": job.num_nodes,
        "rdzvBackend": "c10d",
        # Of run and attempt: state that an earlier attempt left in a store must not be found.
        "rdzvId": job.name,
    }
    if job.scheduling.etcd_endpoint:
        host, _, port = job.scheduling.etcd_endpoint.rpartition(":")
        policy |= {"rdzvBackend": "etcd-v2", "rdzvHost": host, "rdzvPort": int(port)}
    return policy


def _run_policy(job: TrainingJob) -> dict[str, Any]:
    scheduling, pods = job.scheduling, job.pods
    assert pods is not None
    policy: dict[str, Any] = {
        # Of a failed job, pods that still run would wait for the one that is gone.
        "cleanPodPolicy": "Running",
    }
    if scheduling.ttl_s is not None:
        policy["ttlSecondsAfterFinished"] = scheduling.ttl_s
    if scheduling.gang != "none":
        policy["schedulingPolicy"] = pod.without_empty(
            {
                "minAvailable": job.num_nodes,
                "queue": scheduling.queue if scheduling.gang == "volcano" else None,
                "priorityClass": pods.priority_class,
            }
        )
    return policy


def _pod_spec(job: TrainingJob) -> dict[str, Any]:
    pods = job.pods
    assert pods is not None
    ports = [{"name": "metrics", "containerPort": pods.metrics_port}] if pods.metrics_port else []
    container = pod.without_empty(
        {
            "name": PYTORCHJOB.container,
            "image": pods.image,
            "command": job.command,
            "env": pod.env(job, PYTORCHJOB),
            "resources": pod.resources(job),
            "volumeMounts": pod.volume_mounts(job),
            "securityContext": pod.CONTAINER_SECURITY,
            # The operator adds its own port only where there is none.
            "ports": [{"name": "pytorchjob-port", "containerPort": RENDEZVOUS_PORT}, *ports] if ports else [],
        }
    )
    return pod.without_empty(
        {
            "initContainers": pod.init_containers(job, PYTORCHJOB),
            "containers": [container],
            "volumes": pod.volumes(job),
            "securityContext": pod.POD_SECURITY,
            "serviceAccountName": pods.service_account,
            # Ranks read user data and model code; none of that should be able to talk to the cluster.
            "automountServiceAccountToken": False,
            "imagePullSecrets": [{"name": name} for name in pods.image_pull_secrets],
            "nodeSelector": pods.node_selector,
            "tolerations": list(pods.tolerations),
            "affinity": pod.affinity(job),
            "priorityClassName": pods.priority_class,
            "terminationGracePeriodSeconds": pods.grace_s,
            # Hundreds of services of the namespace would otherwise become environment variables.
            "enableServiceLinks": False,
        }
    )


def _kueue(job: TrainingJob) -> dict[str, str]:
    queue = job.scheduling.queue
    return {"kueue.x-k8s.io/queue-name": queue} if queue and job.scheduling.gang != "volcano" else {}


def _hyperpod(job: TrainingJob) -> dict[str, str]:
    retries = job.scheduling.hyperpod_max_retries
    if retries is None:
        return {}
    return {
        f"{_HYPERPOD}/enable-job-auto-resume": "true",
        f"{_HYPERPOD}/job-max-retry-count": str(retries),
    }
