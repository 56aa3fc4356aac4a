"""Builds the kustomizations of deploy/kubernetes, and looks things up in what comes out."""

import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"

Object = dict[str, Any]


def _kubectl_minor() -> int:
    """Minor version of the kubectl that is installed; 0 without one."""
    if shutil.which("kubectl") is None:
        return 0
    command = ["kubectl", "version", "--client", "--output=json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    return int(json.loads(answer)["clientVersion"]["minor"].rstrip("+"))


needs_kubectl = pytest.mark.skipif(
    _kubectl_minor() < 27,
    reason="kubectl 1.27 or newer, which builds the kustomizations, is not installed",
)


def kustomizations(kind: str) -> list[str]:
    """Folders below deploy/kubernetes whose kustomization is of a kind: Kustomization or Component."""
    files = ROOT.rglob("kustomization.yaml")
    return sorted(
        str(file.parent.relative_to(ROOT)) for file in files if yaml.safe_load(file.read_text())["kind"] == kind
    )


@functools.cache
def build(folder: str) -> str:
    """The YAML of a folder below deploy/kubernetes, or of an absolute one."""
    done = subprocess.run(["kubectl", "kustomize", ROOT / folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # A deprecated field still builds, with a warning.
    assert done.stderr == ""
    return done.stdout


def objects(folder: str) -> list[Object]:
    """The objects of a folder, fresh for each caller to change."""
    return list(yaml.load_all(build(folder), Loader=yaml.CSafeLoader))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def name_of(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"


def workloads(objects: list[Object]) -> list[Object]:
    return of_kind(objects, "Deployment", "StatefulSet")


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and pod spec of everything that makes pods."""
    for item in workloads(objects):
        yield name_of(item), item["spec"]["template"]["spec"]


def all_containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def containers(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and spec of every container, those that run first included."""
    for name, pod in pods(objects):
        for container in all_containers(pod):
            yield f"{name}, container {container['name']}", container


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector takes something with these labels."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "Exists", "the manifests use no other operator"
        if expression["key"] not in labels:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()
