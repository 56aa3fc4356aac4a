"""What every manifest keeps to. A policy takes the objects of one build and returns what breaks it."""

import re
from collections.abc import Iterator

from tests.deploy.manifests import Object, all_containers, containers, matches, name_of, of_kind, pods, workloads

KNOWN_SECRETS = {"shardline-credentials", "mlflow-database", "mlflow-objects"}
"""Those that the README tells to create."""

TRAINING_PODS = {"app.kubernetes.io/name": "shardline", "app.kubernetes.io/component": "training"}
"""Labels of the pods that are not in the manifests, because the launcher makes them."""

_SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|CREDENTIAL")
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_CLUSTER_KINDS = {"Namespace", "ClusterRole", "ClusterRoleBinding", "ResourceFlavor", "ClusterQueue"}


def no_wildcards(objects: list[Object]) -> Iterator[str]:
    """No `*` in a role."""
    for role in of_kind(objects, "Role", "ClusterRole"):
        for rule in role["rules"]:
            for field, values in rule.items():
                if any("*" in value for value in values):
                    yield f"{name_of(role)}: {field} {values}"


def one_secret_only(objects: list[Object]) -> Iterator[str]:
    """A role may read the one secret, by its name, and do nothing else with secrets."""
    for role in of_kind(objects, "Role", "ClusterRole"):
        for rule in role["rules"]:
            allowed = rule.get("resourceNames") == ["shardline-credentials"] and rule["verbs"] == ["get"]
            if any(resource.startswith("secrets") for resource in rule["resources"]) and not allowed:
                yield f"{name_of(role)}: {rule}"


def least_of_the_cluster(objects: list[Object]) -> Iterator[str]:
    """The only thing seen outside of a namespace are nodes, and nothing becomes anybody else."""
    for role in of_kind(objects, "ClusterRole"):
        for rule in role["rules"]:
            if rule["resources"] != ["nodes"] or not set(rule["verbs"]) <= {"get", "list"}:
                yield f"{name_of(role)}: {rule}"
    for role in of_kind(objects, "Role"):
        for rule in role["rules"]:
            if {"impersonate", "bind", "escalate"} & set(rule["verbs"]) or "pods/exec" in rule["resources"]:
                yield f"{name_of(role)}: {rule}"


def bindings_resolve(objects: list[Object]) -> Iterator[str]:
    """A binding's role is there, and its subjects are accounts of the namespaces that the build knows."""
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        reference = binding["roleRef"]
        namespace = binding["metadata"].get("namespace")
        if not any(
            role["metadata"]["name"] == reference["name"] and role["metadata"].get("namespace") == namespace
            for role in of_kind(objects, reference["kind"])
        ):
            yield f"{name_of(binding)}: no {reference['kind']} {reference['name']} in {namespace}"
        for subject in binding["subjects"]:
            if subject["kind"] != "ServiceAccount":
                yield f"{name_of(binding)}: subject {subject}"
            if namespace is not None and subject.get("namespace") != namespace:
                yield f"{name_of(binding)}: subject {subject} is not of {namespace}"


def pinned_images(objects: list[Object]) -> Iterator[str]:
    """An image names its registry and a tag that is not moved."""
    for name, container in containers(objects):
        host, _, rest = container["image"].partition("/")
        tag = rest.rpartition(":")[2] if ":" in rest else ""
        if "." not in host or not re.search(r"\d+\.\d+", tag):
            yield f"{name}: {container['image']}"


def no_literal_secrets(objects: list[Object]) -> Iterator[str]:
    """Secrets are referred to, never written, and only those are that the README tells to create."""
    for item in of_kind(objects, "Secret"):
        yield f"{name_of(item)} is in the manifests"
    for item in of_kind(objects, "ConfigMap"):
        for key, value in item.get("data", {}).items():
            if _SECRET_NAME.search(key) or _PASSWORD_IN_ADDRESS.search(value):
                yield f"{name_of(item)}: {key}"
    for name, container in containers(objects):
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference and reference["name"] not in KNOWN_SECRETS:
                yield f"{name}: secret {reference['name']}"
            literal = variable.get("value")
            if literal is not None and (
                _SECRET_NAME.search(variable["name"]) or _PASSWORD_IN_ADDRESS.search(literal)
            ):
                yield f"{name}: {variable['name']}"


def restricted_pods(objects: list[Object]) -> Iterator[str]:
    """Every pod keeps to the pod security standard `restricted`, and writes nowhere but in its volumes."""
    for name, pod in pods(objects):
        context = pod.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
            yield f"{name}: runs as root"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name}: seccomp profile {context.get('seccompProfile')}"
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(field):
                yield f"{name}: {field}"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{name}: gets a token of the cluster"
        for volume in pod.get("volumes", []):
            if not {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"} & volume.keys():
                yield f"{name}: volume {volume}"
    for name, container in containers(objects):
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield f"{name}: may gain privileges"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{name}: capabilities {context.get('capabilities')}"
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{name}: may write in its image"
        if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
            yield f"{name}: runs as root"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"{name}: host port"


def restricted_namespaces(objects: list[Object]) -> Iterator[str]:
    """Namespaces that the manifests make admit no other pods."""
    for namespace in of_kind(objects, "Namespace"):
        labels = namespace["metadata"].get("labels", {})
        if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
            yield name_of(namespace)


def probed(objects: list[Object]) -> Iterator[str]:
    """Every container that stays says when it is well."""
    for name, pod in pods(objects):
        for container in pod["containers"]:
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe not in container:
                    yield f"{name}: no {probe}"
                elif "httpGet" in container[probe] and container[probe]["httpGet"]["port"] not in ports:
                    yield f"{name}: {probe} asks a port that is not there"


def bounded(objects: list[Object]) -> Iterator[str]:
    """Every container says what it takes."""
    for name, container in containers(objects):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        if not {"cpu", "memory"} <= requests.keys() or "memory" not in limits:
            yield f"{name}: resources {resources}"


def shared_store(objects: list[Object]) -> Iterator[str]:
    """The store is ReadWriteMany."""
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        if claim["metadata"]["name"] == "shardline-store" and claim["spec"]["accessModes"] != ["ReadWriteMany"]:
            yield f"{name_of(claim)}: {claim['spec']['accessModes']}"


def selectors_match(objects: list[Object]) -> Iterator[str]:
    """Whatever selects pods of these manifests finds them, in its namespace and with the port that it names."""
    for item in workloads(objects):
        if not matches(item["spec"]["selector"], item["spec"]["template"]["metadata"]["labels"]):
            yield f"{name_of(item)} does not select its own pods"
    for service in of_kind(objects, "Service"):
        found = _selected(objects, service, {"matchLabels": service["spec"]["selector"]})
        if len(found) != 1:
            yield f"{name_of(service)} selects {len(found)} workloads"
        for port in service["spec"]["ports"]:
            if any(port["targetPort"] not in _ports(item) for item in found):
                yield f"{name_of(service)}: no port {port['targetPort']}"
    for policy in of_kind(objects, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        if selector in ({}, {"matchLabels": TRAINING_PODS}):
            continue
        found = _selected(objects, policy, selector)
        if not found:
            yield f"{name_of(policy)} selects nothing"
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                if any(port["port"] not in _ports(item) for item in found):
                    yield f"{name_of(policy)}: no port {port['port']}"


def guarded_services(objects: list[Object]) -> Iterator[str]:
    """A network policy says who may come to each pod that listens, and names them."""
    for item in workloads(objects):
        labels = item["spec"]["template"]["metadata"]["labels"]
        policies = [
            policy
            for policy in of_kind(objects, "NetworkPolicy")
            if policy["metadata"].get("namespace") == item["metadata"].get("namespace")
            and matches(policy["spec"]["podSelector"], labels)
            and "Ingress" in policy["spec"]["policyTypes"]
        ]
        if not policies:
            yield f"{name_of(item)} has no network policy"
        for policy in policies:
            if any(not rule.get("from") for rule in policy["spec"].get("ingress", [])):
                yield f"{name_of(policy)} lets everybody in"


def references_resolve(objects: list[Object]) -> Iterator[str]:
    """Configuration, accounts, services and volumes that a workload names are there."""
    known = {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects}
    for item in workloads(objects):
        namespace, pod = item["metadata"].get("namespace"), item["spec"]["template"]["spec"]
        wanted = [
            ("ConfigMap", source["configMapRef"]["name"])
            for container in all_containers(pod)
            for source in container.get("envFrom", [])
        ]
        if account := pod.get("serviceAccountName"):
            wanted.append(("ServiceAccount", account))
        if service := item["spec"].get("serviceName"):
            wanted.append(("Service", service))
        for kind, name in wanted:
            if (kind, namespace, name) not in known:
                yield f"{name_of(item)}: no {kind} {name}"
        volumes = {volume["name"] for volume in pod.get("volumes", [])} | {
            claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])
        }
        for container in all_containers(pod):
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{name_of(item)}: no volume {mount['name']}"


def in_a_namespace(objects: list[Object]) -> Iterator[str]:
    """Everything says where it goes, whatever namespace the reader's kubectl is set to."""
    for item in objects:
        if (item["kind"] in _CLUSTER_KINDS) == ("namespace" in item["metadata"]):
            yield name_of(item)


POLICIES = [
    no_wildcards,
    one_secret_only,
    least_of_the_cluster,
    bindings_resolve,
    pinned_images,
    no_literal_secrets,
    restricted_pods,
    restricted_namespaces,
    probed,
    bounded,
    shared_store,
    selectors_match,
    guarded_services,
    references_resolve,
    in_a_namespace,
]


def _selected(objects: list[Object], by: Object, selector: Object) -> list[Object]:
    return [
        item
        for item in workloads(objects)
        if item["metadata"].get("namespace") == by["metadata"].get("namespace")
        and matches(selector, item["spec"]["template"]["metadata"]["labels"])
    ]


def _ports(workload: Object) -> set[str]:
    pod = workload["spec"]["template"]["spec"]
    return {port["name"] for container in pod["containers"] for port in container.get("ports", [])}
