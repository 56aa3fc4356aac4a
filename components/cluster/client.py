"""The connection to a cluster: from inside a pod, or by a kubeconfig."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import kubernetes
import yaml

from components.cluster.errors import ClusterRefused, ClusterUnavailable, api_errors
from components.cluster.inside import ACCOUNT, is_inside
from training.credentials import shown
from training.errors import UserError
from training.kubernetes_rules import is_namespace

_CONNECTIONS = 128
"""Kept open at once: a log stream per pod, a watch, and the short requests."""

TIMEOUT_S = (5, 30)
"""To connect, and for an answer, of a short request."""

_BACKOFF_S = (0.5, 1, 2, 4, 8, 16)

REFUSED_S = 60.0
"""A refusal of what was allowed before counts once it has lasted so long: a server that has just started knows
neither tokens nor roles yet."""

_UNREADABLE = (
    kubernetes.config.ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
)
"""What the client raises of a kubeconfig, depending on what is wrong with it."""

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
        UserError: There is neither, the kubeconfig cannot be read, or no namespace can have this name.
    """
    if namespace and not is_namespace(namespace):
        raise UserError(
            f"the namespace {shown(namespace)} is not valid: it has at most 63 lower-case letters, digits and '-'"
        )
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
        except _UNREADABLE as error:
            raise UserError(
                f"there is no cluster to talk to ({str(error).splitlines()[0] if str(error) else error!r}): set "
                "KUBECONFIG to a kubeconfig that `kubectl get pods` works with, or run this inside the cluster"
            ) from None
        own, where = context["context"].get("namespace") or "default", f"the context '{context['name']}'"
    if not all(map(_fits_a_header, configuration.api_key.values())):
        raise UserError(
            "the kubeconfig's token has a line break or letters that no token has, so there is no cluster to talk "
            "to: log in again, or renew it"
        )
    configuration.connection_pool_maxsize = _CONNECTIONS
    # Retries are ours: the client's would repeat a create whose answer was lost.
    configuration.retries = False
    return Cluster(kubernetes.client.ApiClient(configuration), namespace or own, where)


def _fits_a_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def patiently(doing: str, call: Callable[[], Result], patience_s: float = 60.0, refused_s: float = 0.0) -> Result:
    """Make a request, and again while the server is not available.

    Args:
        doing: What it does, for messages.
        call: The request. A create is safe only where a name that is taken is expected.
        patience_s: How long to try.
        refused_s: How long to try although the account is refused.

    Raises:
        ClusterRefused: The server said no.
        ClusterUnavailable: It was not available all that time.
    """
    deadline = time.monotonic() + patience_s
    refused_since: float | None = None
    for trial in range(10**6):
        wait: float = _BACKOFF_S[min(trial, len(_BACKOFF_S) - 1)]
        try:
            with api_errors(doing):
                return call()
        except ClusterUnavailable as error:
            wait = max(error.retry_after_s or 0, wait)
            if time.monotonic() + wait > deadline:
                raise
        except ClusterRefused as error:
            refused_since = refused_since or time.monotonic()
            if error.status not in (401, 403) or time.monotonic() + wait > refused_since + refused_s:
                raise
        time.sleep(wait)
    raise AssertionError("unreachable")
