"""The environment of a container's process."""

import base64
import os
import socket
import sys
from pathlib import Path

from tests.doubles.cluster.container import expand
from tests.doubles.cluster.resources import CONFIG_MAPS, SECRETS


class ConfigError(Exception):
    """The container refers to something that is not there."""


class LocalNetwork:
    """Names of workers do not resolve here: each job gets a free port of this machine in their place."""

    def __init__(self):
        self._ports = {}

    def localize(self, environment, job):
        """Point the rendezvous at this machine; the API goes on showing the real names."""
        changed = dict(environment)
        if "PET_RDZV_ENDPOINT" in environment:
            changed["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{self._port(job, environment['PET_RDZV_ENDPOINT'])}"
        for prefix in ("PET_", ""):
            host, port = f"{prefix}MASTER_ADDR", f"{prefix}MASTER_PORT"
            if host in environment:
                local = self._port(job, f"{environment[host]}:{environment.get(port)}")
                changed |= {host: "127.0.0.1", port: str(local)}
        return {"GLOO_SOCKET_IFNAME": "lo", "PET_LOCAL_ADDR": "127.0.0.1", **changed}

    def _port(self, job, endpoint):
        if (job, endpoint) not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[job, endpoint] = probe.getsockname()[1]
        return self._ports[job, endpoint]


def environment_of(pod, container, store, address):
    """The variables that the API shows, resolved, on those that an image has."""
    name = pod["metadata"]["name"]
    base = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": os.environ.get("HOME", "/root"),
        "LANG": "C.UTF-8",
        "HOSTNAME": pod["spec"].get("hostname", name)[:63].rstrip("-."),
    }
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom", []):
        base |= _all_of(source, namespace, store)
    for variable in container.get("env", []):
        value = _value(variable, pod, container, store, address)
        if value is not None:
            base[variable["name"]] = expand(value, base)
    return base


def missing_volume(pod, store):
    """What the kubelet says to a volume from a secret or a config map that is not there."""
    for volume in pod["spec"].get("volumes", []):
        for key, resource, field in (("secret", SECRETS, "secretName"), ("configMap", CONFIG_MAPS, "name")):
            source = volume.get(key)
            if source is None or source.get("optional"):
                continue
            if store.find(resource, pod["metadata"]["namespace"], source[field]) is None:
                missing = f'{resource.kind.lower()} "{source[field]}" not found'
                return f'MountVolume.SetUp failed for volume "{volume["name"]}" : {missing}'
    return None


def _value(variable, pod, container, store, address):
    source = variable.get("valueFrom")
    if source is None:
        return variable.get("value", "")
    namespace = pod["metadata"]["namespace"]
    for key, resource in (("secretKeyRef", SECRETS), ("configMapKeyRef", CONFIG_MAPS)):
        if reference := source.get(key):
            return _entry(reference, resource, namespace, store)
    if reference := source.get("fieldRef"):
        return _field(pod, reference["fieldPath"], address)
    if reference := source.get("resourceFieldRef"):
        where, name = reference["resource"].split(".", 1)
        return str(container["resources"].get(where, {}).get(name, "0"))
    raise ConfigError(f"no source in {source}")


def _entry(reference, resource, namespace, store):
    name, key, optional = reference["name"], reference["key"], reference.get("optional")
    item = store.find(resource, namespace, name)
    if item is None:
        if optional:
            return None
        raise ConfigError(f'{resource.kind.lower()} "{name}" not found')
    data = item.get("data") or {}
    if key not in data:
        if optional:
            return None
        raise ConfigError(f"couldn't find key {key} in {resource.kind} {namespace}/{name}")
    return _text(resource, data[key])


def _all_of(source, namespace, store):
    for key, resource in (("secretRef", SECRETS), ("configMapRef", CONFIG_MAPS)):
        if reference := source.get(key):
            item = store.find(resource, namespace, reference["name"])
            if item is None:
                if reference.get("optional"):
                    return {}
                raise ConfigError(f'{resource.kind.lower()} "{reference["name"]}" not found')
            prefix = source.get("prefix", "")
            return {prefix + name: _text(resource, value) for name, value in (item.get("data") or {}).items()}
    return {}


def _text(resource, value):
    return base64.b64decode(value).decode() if resource is SECRETS else value


def _field(pod, path, address):
    status = {"status.podIP": address, "status.hostIP": "10.0.0.1", "spec.nodeName": pod["spec"]["nodeName"]}
    if path in status:
        return status[path]
    if path.endswith("']"):
        where, key = path[:-2].split("['", 1)
        return (pod["metadata"].get(where.split(".")[1]) or {}).get(key, "")
    value = pod
    for part in path.split("."):
        value = value[part]
    return str(value)
