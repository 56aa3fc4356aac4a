import copy
import json
import re
from collections.abc import Callable

import jsonschema
import kubernetes_validate
import pytest
import yaml

from components.image import STEPS_IMAGE
from tests.deploy import policies
from tests.deploy.manifests import (
    ROOT,
    Object,
    build,
    kustomizations,
    matches,
    needs_kubectl,
    objects,
    of_kind,
    workloads,
)
from tests.deploy.schemas import KUBERNETES_VERSIONS, validate

pytestmark = needs_kubectl

OVERLAYS = [folder for folder in kustomizations("Kustomization") if re.fullmatch(r"overlays/[a-z-]+", folder)]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# One node has one kind of storage, which is mounted once per node.
EXEMPT = {("overlays/local", policies.shared_store)}


def test_the_overlays_are_there():
    assert {"overlays/plain", "overlays/standalone", "overlays/kubeflow-profile"} <= set(OVERLAYS)
    assert {"overlays/kueue", "overlays/local", "overlays/aws"} <= set(OVERLAYS)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_all_objects_keep_to_their_schemas(version):
    # Most are in several folders.
    items = {json.dumps(item): item for folder in kustomizations("Kustomization") for item in objects(folder)}
    assert len(items) > 50
    for item in items.values():
        validate(item, version)


def test_the_pod_that_copies_data_is_valid_and_restricted():
    (pod,) = yaml.safe_load_all((ROOT / "copy-data.yaml").read_text())
    for version in KUBERNETES_VERSIONS:
        validate(pod, version)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == STEPS_IMAGE
    # As a workload, which is what the policies look at.
    labels = {"app": "copy-data"}
    template = {"metadata": {"labels": labels}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "copy-data", "namespace": "a"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    for policy in (policies.restricted_pods, policies.pinned_images, policies.bounded):
        assert list(policy([workload])) == [], policy.__name__


@pytest.mark.parametrize("folder", kustomizations("Component"))
def test_every_component_is_used_and_so_built(folder):
    name = folder.removeprefix("components/")
    assert any(f"components/{name}\n" in file.read_text() for file in ROOT.rglob("overlays/**/kustomization.yaml"))


@pytest.mark.parametrize("policy", policies.POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("folder", OVERLAYS)
def test_policies(folder, policy):
    broken = list(policy(objects(folder)))
    assert bool(broken) == ((folder, policy) in EXEMPT), broken


def test_what_a_cluster_would_refuse_fails_here():
    unknown = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "a"}, "spec": {}}
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate(unknown, "1.36")
    for kind, change in {
        "Deployment": lambda item: item["spec"].update(replica=1),
        "NetworkPolicy": lambda item: item["spec"].update(podSelector=[]),
        "ClusterQueue": lambda item: item["spec"].update(cohort="all"),
        "LocalQueue": lambda item: item["spec"].update(clusterQueue=1),
        "ResourceFlavor": lambda item: item["spec"].update(nodeTaint=[]),
    }.items():
        item = of_kind(objects("overlays/kueue"), kind)[0]
        change(item)
        with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
            validate(item, "1.36")


def _rule(kind: str, **fields) -> Callable[[list[Object]], None]:
    return lambda items: of_kind(items, kind)[0]["rules"].append(
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], **fields}
    )


def _pod(**fields) -> Callable[[list[Object]], None]:
    return lambda items: workloads(items)[0]["spec"]["template"]["spec"].update(fields)


def _container(*removed, **fields) -> Callable[[list[Object]], None]:
    def change(items):
        container = workloads(items)[0]["spec"]["template"]["spec"]["containers"][0]
        container.update(fields)
        for name in removed:
            del container[name]

    return change


def _security(**fields) -> Callable[[list[Object]], None]:
    def change(items):
        container = workloads(items)[0]["spec"]["template"]["spec"]["containers"][0]
        container["securityContext"].update(fields)

    return change


def _first(kind: str, path: str, value: object) -> Callable[[list[Object]], None]:
    def change(items):
        *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        place = of_kind(items, kind)[0]
        for part in way:
            place = place[part]
        place[last] = value

    return change


def _named(kind: str, name: str, path: str, value: object) -> Callable[[list[Object]], None]:
    return lambda items: _first(kind, path, value)(
        [item for item in items if item["kind"] == kind and item["metadata"]["name"] == name]
    )


MUTATIONS = [
    (policies.no_wildcards, _rule("Role", verbs=["*"])),
    (policies.no_wildcards, _rule("ClusterRole", apiGroups=["*"])),
    (policies.one_secret_only, _rule("Role", resources=["secrets"])),
    (policies.one_secret_only, _rule("Role", resources=["secrets"], resourceNames=["other"])),
    (policies.one_secret_only, _rule("ClusterRole", resources=["secrets"], verbs=["list"])),
    (policies.least_of_the_cluster, _rule("ClusterRole")),
    (policies.least_of_the_cluster, _rule("ClusterRole", resources=["nodes"], verbs=["patch"])),
    (policies.least_of_the_cluster, _rule("Role", resources=["pods/exec"], verbs=["create"])),
    (policies.bindings_resolve, _first("RoleBinding", "roleRef/name", "other")),
    (policies.bindings_resolve, _first("RoleBinding", "subjects/0/namespace", "other")),
    (policies.bindings_resolve, _first("RoleBinding", "subjects/0/kind", "Group")),
    (policies.pinned_images, _container(image="docker.io/library/postgres")),
    (policies.pinned_images, _container(image="docker.io/library/postgres:latest")),
    (policies.pinned_images, _container(image="postgres:17.6")),
    (policies.no_literal_secrets, _container(env=[{"name": "PGPASSWORD", "value": "mlflow"}])),
    (policies.no_literal_secrets, _container(env=[{"name": "URI", "value": "postgresql://a:b@c/d"}])),
    (policies.no_literal_secrets, _first("ConfigMap", "data/URI", "postgresql://a:b@c/d")),
    (policies.no_literal_secrets, _first("ConfigMap", "data/HF_TOKEN", "hf_")),
    (
        policies.no_literal_secrets,
        lambda items: items.append({"kind": "Secret", "metadata": {"name": "a", "namespace": "shardline"}}),
    ),
    (policies.restricted_pods, _pod(securityContext={})),
    (policies.restricted_pods, _pod(hostNetwork=True)),
    (policies.restricted_pods, _pod(automountServiceAccountToken=True)),
    (policies.restricted_pods, _pod(volumes=[{"name": "scratch", "hostPath": {"path": "/tmp"}}])),
    (policies.restricted_pods, _security(allowPrivilegeEscalation=True)),
    (policies.restricted_pods, _security(capabilities={"drop": ["ALL"], "add": ["SYS_PTRACE"]})),
    (policies.restricted_pods, _security(readOnlyRootFilesystem=False)),
    (policies.restricted_pods, _security(runAsUser=0)),
    (policies.restricted_namespaces, _first("Namespace", "metadata/labels", {})),
    (policies.probed, _container("livenessProbe")),
    (policies.probed, _container("readinessProbe")),
    (policies.bounded, _container("resources")),
    (policies.probed, _container(livenessProbe={"httpGet": {"path": "/", "port": "web"}})),
    (policies.shared_store, _first("PersistentVolumeClaim", "spec/accessModes", ["ReadWriteOnce"])),
    (policies.selectors_match, _first("Deployment", "spec/selector/matchLabels", {"app": "other"})),
    (policies.selectors_match, _first("Service", "spec/selector", {"app": "other"})),
    (policies.selectors_match, _first("Service", "spec/ports/0/targetPort", "web")),
    (policies.selectors_match, _named("NetworkPolicy", "mlflow", "spec/podSelector", {"matchLabels": {"a": "b"}})),
    (policies.selectors_match, _named("NetworkPolicy", "mlflow", "spec/ingress/0/ports/0/port", "web")),
    (policies.guarded_services, _named("NetworkPolicy", "mlflow", "spec/ingress/0/from", [])),
    (
        policies.guarded_services,
        lambda items: items.__setitem__(slice(None), [i for i in items if i["kind"] != "NetworkPolicy"]),
    ),
    (policies.references_resolve, _first("ConfigMap", "metadata/name", "other")),
    (policies.references_resolve, _first("StatefulSet", "spec/serviceName", "other")),
    (policies.references_resolve, _pod(serviceAccountName="other")),
    (policies.references_resolve, _pod(volumes=[])),
    (policies.in_a_namespace, lambda items: of_kind(items, "Deployment")[0]["metadata"].pop("namespace")),
]


@pytest.mark.parametrize(("policy", "change"), MUTATIONS)
def test_every_policy_can_fail(policy, change):
    items = copy.deepcopy(objects("overlays/standalone"))
    assert not list(policy(items))
    change(items)
    assert list(policy(items))


def test_no_policy_lacks_a_mutation():
    assert {policy for policy, _ in MUTATIONS} == set(policies.POLICIES)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_readme_creates_every_secret_that_an_overlay_needs(folder):
    wanted = set(re.findall(r"secretKeyRef:\s+key: \S+\s+name: (\S+)", build(folder)))
    assert wanted
    for name in wanted:
        assert f"create secret generic {name} " in README


def test_the_readme_lists_all_there_is():
    listed = set(re.findall(r"`((?:overlays|components)/[a-z-]+)`", README))
    folders = {
        f"{kind}/{folder.name}" for kind in ("overlays", "components") for folder in (ROOT / kind).iterdir()
    }
    assert {entry for entry in listed if not entry.startswith(("base", "prerequisites"))} == folders


@pytest.mark.parametrize("folder", ["overlays/standalone", "overlays/kubeflow-profile", "overlays/plain"])
def test_training_pods_hear_each_other_and_prometheus_only(folder):
    pod = {**policies.TRAINING_PODS, "training.kubeflow.org/job-name": "run-1"}
    rules = [
        rule
        for policy in of_kind(objects(folder), "NetworkPolicy")
        if matches(policy["spec"]["podSelector"], pod)
        for rule in policy["spec"].get("ingress", [])
    ]

    def heard(labels: dict[str, str], port: int) -> bool:
        return any(
            matches(source["podSelector"], labels)
            for rule in rules
            if port in [entry["port"] for entry in rule.get("ports", [{"port": port}])]
            for source in rule["from"]
        )

    assert heard(pod, 29500) and heard(pod, 45123)
    assert heard({"app.kubernetes.io/name": "prometheus"}, 9400)
    assert not heard({"app.kubernetes.io/name": "prometheus"}, 29500)
    assert not heard({"app.kubernetes.io/name": "mlflow"}, 29500)


@pytest.mark.parametrize(
    ("folder", "account", "namespace"),
    [
        ("overlays/plain", "shardline", "shardline"),
        ("overlays/standalone", "pipeline-runner", "kubeflow"),
        ("overlays/aws", "pipeline-runner", "kubeflow"),
        ("overlays/kubeflow-profile", "default-editor", "kubeflow-user-example-com"),
    ],
)
def test_the_account_of_the_steps_may_launch_jobs_where_the_store_is(folder, account, namespace):
    items = objects(folder)
    [store] = [
        claim
        for claim in of_kind(items, "PersistentVolumeClaim")
        if claim["metadata"]["name"] == "shardline-store"
    ]
    assert store["metadata"]["namespace"] == namespace
    [binding] = of_kind(items, "RoleBinding")
    assert {"kind": "ServiceAccount", "name": account, "namespace": namespace} in binding["subjects"]
    [role] = [role for role in of_kind(items, "Role") if role["metadata"]["namespace"] == namespace]
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    for group, kind in (("kubeflow.org", "pytorchjobs"), ("trainer.kubeflow.org", "trainjobs")):
        for verb in ("create", "get", "list", "watch", "patch", "delete"):
            assert (group, kind, verb) in allowed
    assert {("", "pods", "watch"), ("", "pods/log", "get"), ("", "events", "list")} <= allowed


def test_the_queue_of_an_overlay_takes_jobs_of_the_steps_namespace():
    items = objects("overlays/kueue")
    [local], [cluster] = of_kind(items, "LocalQueue"), of_kind(items, "ClusterQueue")
    [flavor] = of_kind(items, "ResourceFlavor")
    [store] = of_kind(items, "PersistentVolumeClaim")
    namespace = store["metadata"]["namespace"]
    assert local["metadata"]["namespace"] == namespace
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    assert matches(cluster["spec"]["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
    [group] = cluster["spec"]["resourceGroups"]
    for quota in group["flavors"]:
        assert quota["name"] == flavor["metadata"]["name"]
        # Kueue refuses a flavor that lists other resources, or the same in another order.
        assert [resource["name"] for resource in quota["resources"]] == group["coveredResources"]


def test_the_operators_patch_changes_its_container_and_adds_none(tmp_path):
    container = {"name": "training-operator", "image": "operator:1", "command": ["/manager"]}
    operator = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "training-operator"},
        "spec": {
            "selector": {"matchLabels": {"app": "operator"}},
            "template": {
                "metadata": {"labels": {"app": "operator"}},
                "spec": {
                    "containers": [{"name": "training-operator", "image": "operator:1", "command": ["/manager"]}]
                },
            },
        },
    }
    patch = yaml.safe_load((ROOT / "prerequisites" / "training-operator-gang.yaml").read_text())
    head = {key: operator[key] for key in ("apiVersion", "kind", "metadata")}
    (tmp_path / "operator.yaml").write_text(json.dumps(operator))
    (tmp_path / "patch.yaml").write_text(json.dumps({**head, **patch}))
    (tmp_path / "kustomization.yaml").write_text(
        json.dumps({"resources": ["operator.yaml"], "patches": [{"path": "patch.yaml"}]})
    )
    [patched] = yaml.safe_load_all(build(str(tmp_path)))
    validate(patched, "1.36")
    args = ["--gang-scheduler-name=volcano"]
    assert patched["spec"]["template"]["spec"]["containers"] == [{**container, "args": args}]
