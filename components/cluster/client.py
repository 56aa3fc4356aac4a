"""The connection to a cluster: from inside a pod, or by a kubeconfig."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import kubernetes
import yaml

from components.cluster.errors import ClusterUnavailable, api_errors
from components.cluster.inside import ACCOUNT, is_inside
from training.errors import UserError

_CONNECTIONS = 128
"""Kept open at once: a log stream per pod, a watch, and the short requests."""

TIMEOUT_S = (5, 30)
"""To connect, and for an answer, of a short request."""

_BACKOFF_S = (0.5, 1, 2, 4, 8, 16)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    """A cluster and the namespace that is worked in.

    Attributes:
        api: The Kubernetes client's connection.
        namespace: Where jobs are.
        where: How the connection was found, for messages.
    """

    api: kubernetes.client.ApiClient
    namespace: str
    where: str

    @property
    def core(self) -> kubernetes.client.CoreV1Api:
        """Pods, events, claims, secrets, nodes."""
        return kubernetes.client.CoreV1Api(self.api)

    @property
    def custom(self) -> kubernetes.client.CustomObjectsApi:
        """Jobs of the training operators."""
        return kubernetes.client.CustomObjectsApi(self.api)


def connect(namespace: str | None = None) -> Cluster:
    """Connect by the pod's service account, or by the kubeconfig (KUBECONFIG or ~/.kube/config).

    Args:
        namespace: Where to work. None: the pod's own namespace, or that of the kubeconfig's context.

    Raises:
        UserError: There is neither, or the kubeconfig cannot be read.
    """
    configuration = kubernetes.client.Configuration()
    if is_inside():
        kubernetes.config.load_incluster_config(configuration)
        own, where = (ACCOUNT / "namespace").read_text().strip(), "the pod's service account"
    else:
        # Named here, because the client looks at the environment only when it is imported.
        file = os.environ.get("KUBECONFIG") or "~/.kube/config"
        try:
            kubernetes.config.load_kube_config(file, client_configuration=configuration)
            _, context = kubernetes.config.list_kube_config_contexts(file)
        except (kubernetes.config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as error:
            raise UserError(
                f"there is no cluster to talk to ({str(error).splitlines()[0] if str(error) else error!r}): set "
                "KUBECONFIG to a kubeconfig that `kubectl get pods` works with, or run this inside the cluster"
            ) from None
        own, where = context["context"].get("namespace", "default"), f"the context '{context['name']}'"
    configuration.connection_pool_maxsize = _CONNECTIONS
    # Retries are ours: the client's would repeat a create whose answer was lost.
    configuration.retries = False
    return Cluster(kubernetes.client.ApiClient(configuration), namespace or own, where)


def patiently(doing: str, call: Callable[[], Result], patience_s: float = 60.0) -> Result:
    """Make a request, and again while the server is not available.

    Args:
        doing: What it does, for messages.
        call: The request. A create is safe only where a name that is taken is expected.
        patience_s: How long to try.

    Raises:
        ClusterRefused: The server said no.
        ClusterUnavailable: It was not available all that time.
    """
    deadline = time.monotonic() + patience_s
    for trial in range(10**6):
        try:
            with api_errors(doing):
                return call()
        except ClusterUnavailable as error:
            wait = max(error.retry_after_s or 0, _BACKOFF_S[min(trial, len(_BACKOFF_S) - 1)])
            if time.monotonic() + wait > deadline:
                raise
            time.sleep(wait)
    raise AssertionError("unreachable")
