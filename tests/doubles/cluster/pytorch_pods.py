"""What the training operator makes of a PyTorchJob: pods, their variables, and services."""

import copy

from tests.doubles.cluster.owned import owned_metadata

CONTROLLER = "pytorchjob-controller"
PORT = 23456
PORT_NAME = "pytorchjob-port"
JOB_NAME = "training.kubeflow.org/job-name"


def replicas_of(job):
    """Kinds of replicas with their number, the master first."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    return {kind: specs[kind].get("replicas", 1) for kind in ("Master", "Worker") if kind in specs}


def pod_name(job, kind, index):
    return f"{job['metadata']['name']}-{kind.lower()}-{index}"


def selector(job, kind):
    return {
        JOB_NAME: job["metadata"]["name"],
        "training.kubeflow.org/operator-name": CONTROLLER,
        "training.kubeflow.org/replica-type": kind.lower(),
    }


def pod_of(job, kind, index):
    """The pod of one replica."""
    spec = job["spec"]["pytorchReplicaSpecs"][kind]
    template = copy.deepcopy(spec["template"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template.get("metadata", {}), "spec": template["spec"]}
    leader = kind == "Master" or ("Master" not in replicas_of(job) and index == 0)
    labels = {
        **pod["metadata"].get("labels", {}),
        **selector(job, kind),
        "training.kubeflow.org/replica-index": str(index),
        **({"training.kubeflow.org/job-role": "master"} if leader else {}),
    }
    pod["metadata"] |= owned_metadata(job, pod_name(job, kind, index), labels)
    policy = spec.get("restartPolicy", "OnFailure")
    pod["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    for container in pod["spec"]["containers"]:
        container["env"] = [*container.get("env", []), *_variables(job, kind, index)]
        if container["name"] == "pytorch" and not _has_port(container):
            container.setdefault("ports", []).append({"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"})
    if kind == "Worker" and "Master" in replicas_of(job):
        pod["spec"].setdefault("initContainers", []).append(_wait_for_master(job))
    return pod


def service_of(job, kind, index):
    """The headless service that gives a pod its name."""
    labels = {**selector(job, kind), "training.kubeflow.org/replica-index": str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(job, pod_name(job, kind, index), labels),
        "spec": {
            "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT}],
            "selector": labels,
            "clusterIP": "None",
        },
    }


def _variables(job, kind, index):
    replicas = replicas_of(job)
    processes = str(job["spec"].get("nprocPerNode", "auto"))
    total = sum(replicas.values())
    variables = {"PYTHONUNBUFFERED": "1"}
    if "Master" in replicas:
        node = 0 if kind == "Master" else index + 1
        master = pod_name(job, "Master", 0)
        variables |= {"MASTER_PORT": str(PORT), "PET_MASTER_PORT": str(PORT)}
        variables |= {"MASTER_ADDR": master, "PET_MASTER_ADDR": master}
        world = total * (int(processes) if processes.isdigit() else 1)
        variables |= {"WORLD_SIZE": str(world), "RANK": str(node), "PET_NODE_RANK": str(node)}
    variables["PET_NPROC_PER_NODE"] = processes
    if elastic := job["spec"].get("elasticPolicy"):
        variables |= _elastic(job, elastic, replicas["Worker"])
    else:
        variables["PET_NNODES"] = str(total)
    return [{"name": name, "value": value} for name, value in variables.items()]


def _elastic(job, policy, workers):
    host = policy.get("rdzvHost") or pod_name(job, "Worker", 0)
    variables = {
        "PET_RDZV_ENDPOINT": f"{host}:{policy.get('rdzvPort', PORT)}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_NNODES": f"{policy.get('minReplicas', workers)}:{policy.get('maxReplicas', workers)}",
    }
    if "maxRestarts" in policy:
        variables["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if "rdzvId" in policy:
        variables["PET_RDZV_ID"] = policy["rdzvId"]
    if "rdzvConf" in policy:
        variables["PET_RDZV_CONF"] = ",".join(f"{each['key']}={each['value']}" for each in policy["rdzvConf"])
    if policy.get("standalone"):
        variables["PET_STANDALONE"] = ""
    return variables


def _has_port(container):
    return any(port.get("name") == PORT_NAME for port in container.get("ports", []))


def _wait_for_master(job):
    master = pod_name(job, "Master", 0)
    script = (
        f"err=1;for i in $(seq 100); do if nslookup {master}; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": "init-pytorch",
        "image": "alpine:3.10",
        "command": ["sh", "-c", script],
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
        "imagePullPolicy": "IfNotPresent",
    }
