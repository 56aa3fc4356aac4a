"""What the API server fills into pods and services, and what it refuses in them."""

import re
import secrets

from tests.doubles.cluster.errors import invalid, not_in_the_double, quota_exceeded
from tests.doubles.cluster.resources import PODS

RESTART_POLICIES = ("Always", "OnFailure", "Never")
NO_EXECUTE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
LABEL = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
LABEL_ADVICE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
    f"validation is '{LABEL}')"
)
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
SUBDOMAIN_ADVICE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{SUBDOMAIN}')"
)


def metadata_violations(item):
    """Names and labels that no kind may have."""
    metadata = item["metadata"]
    causes = []
    name = metadata.get("name", metadata.get("generateName", "") + "x")
    if not re.fullmatch(SUBDOMAIN, name):
        causes.append(("metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {SUBDOMAIN_ADVICE}'))
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63:
            text = f'Invalid value: "{value}": must be no more than 63 bytes'
            causes.append(("metadata.labels", "FieldValueInvalid", text))
        if not re.fullmatch(LABEL, value):
            causes.append(("metadata.labels", "FieldValueInvalid", f'Invalid value: "{value}": {LABEL_ADVICE}'))
    return causes


def default_pod(pod):
    spec = pod["spec"]
    volume = f"kube-api-access-{secrets.token_hex(3)[:5]}"
    mount = {"name": volume, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    spec.setdefault("volumes", []).append({"name": volume, "projected": {"sources": _token(), "defaultMode": 420}})
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container.setdefault("resources", {})
        limits = container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = {**limits, **container["resources"].get("requests", {})}
        container.setdefault("volumeMounts", []).append(mount)
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")
    for key, value in {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": spec.get("serviceAccountName", "default"),
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }.items():
        spec.setdefault(key, value)
    present = {toleration.get("key") for toleration in spec["tolerations"]}
    spec["tolerations"] += [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in NO_EXECUTE
        if key not in present
    ]
    pod["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def check_pod(pod, store):
    """Raise what the server says to a pod that it does not take."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    if spec["restartPolicy"] not in RESTART_POLICIES:
        supported = ", ".join(f'"{policy}"' for policy in RESTART_POLICIES)
        text = f'Unsupported value: "{spec["restartPolicy"]}": supported values: {supported}'
        raise invalid("Pod", "", name, [("spec.restartPolicy", "FieldValueNotSupported", text)])
    if spec["restartPolicy"] != "Never":
        raise not_in_the_double(
            f"pods with restartPolicy {spec['restartPolicy']}; it runs containers once (Never)"
        )
    if len(spec["containers"]) != 1:
        raise not_in_the_double("pods with several containers")
    affinity = spec.get("affinity") or {}
    if "podAffinity" in affinity or "podAntiAffinity" in affinity or "topologySpreadConstraints" in spec:
        raise not_in_the_double("affinity between pods")
    _check_quota(pod, store)


def default_service(service):
    for port in service["spec"].get("ports", []):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    address = service["spec"].get("clusterIP", "10.96.0.2")
    service["spec"] |= {
        "clusterIP": address,
        "clusterIPs": [address],
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
    }
    service["status"] = {"loadBalancer": {}}


def check_service(service):
    name = service["metadata"]["name"]
    if len(name) > 63:
        text = f'Invalid value: "{name}": must be no more than 63 characters'
        raise invalid("Service", "", name, [("metadata.name", "FieldValueInvalid", text)])


def gpus_of(pod):
    """GPUs that a pod asks for."""
    requests = [container.get("resources", {}) for container in pod["spec"]["containers"]]
    return sum(
        int((each.get("limits") or each.get("requests") or {}).get("nvidia.com/gpu", 0)) for each in requests
    )


def _check_quota(pod, store):
    if store.gpu_quota is None:
        return
    others = [other for other in store.list(PODS) if other["status"]["phase"] in ("Pending", "Running")]
    used, requested = sum(map(gpus_of, others)), gpus_of(pod)
    if requested and used + requested > store.gpu_quota:
        resource = "requests.nvidia.com/gpu"
        raise quota_exceeded(pod["metadata"]["name"], "gpus", resource, requested, used, store.gpu_quota)


def _token():
    return [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                ]
            }
        },
    ]


def _pull_policy(image):
    last = image.rsplit("/", 1)[-1]
    return "Always" if ":" not in last or last.endswith(":latest") else "IfNotPresent"


def _quality(spec):
    resources = [container["resources"] for container in spec["containers"]]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    whole = all(
        {"cpu", "memory"} <= set(each.get("limits", {})) and each["limits"] == each["requests"]
        for each in resources
    )
    return "Guaranteed" if whole else "Burstable"
