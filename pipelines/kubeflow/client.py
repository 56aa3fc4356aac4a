"""The connection to Kubeflow Pipelines; whatever goes wrong with it becomes one sentence.

The SDK's client finds the server and the credentials. Its convenience methods print links and take the namespace
from a file in the home folder, so the calls go through the generated interfaces below it.
"""

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import kfp
import kfp_server_api
import urllib3
from kfp.client import KF_PIPELINES_SA_TOKEN_ENV, KF_PIPELINES_SA_TOKEN_PATH, ServiceAccountTokenVolumeCredentials

from components.cluster.client import connect as connect_to_cluster
from training.credentials import shown
from training.errors import UserError
from training.kubernetes_rules import is_namespace

TOKEN_VARIABLE = "KFP_TOKEN"
"""Environment variable that holds a bearer token."""

_HOST_VARIABLES = ("KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT")
_TIMEOUT_S = (10, 60)
"""To connect, and between two answers' bytes; without them a server that hangs would hang the command."""

_LOG_IN = f"set {TOKEN_VARIABLE} to a fresh token, or run this in a notebook of that Kubeflow"


class Conflict(UserError):
    """What was to be made is there already."""


class Missing(UserError):
    """What was asked for is not there, or not any more."""


@dataclass(frozen=True)
class Kubeflow:
    """A server that has answered.

    Attributes:
        host: Its address, for messages and links.
        namespace: The user's namespace, empty where the installation has none.
        links: Beginning of addresses in the web interface.
        runs: Generated interface of runs.
        recurring_runs: Generated interface of recurring runs.
        experiments: Generated interface of experiments.
        pipelines: Generated interface of pipelines and their versions.
        uploads: Generated interface of uploads.
    """

    host: str
    namespace: str
    links: str
    runs: Any = field(repr=False)
    recurring_runs: Any = field(repr=False)
    experiments: Any = field(repr=False)
    pipelines: Any = field(repr=False)
    uploads: Any = field(repr=False)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of a generated interface.

        Raises:
            UserError: The server cannot be reached, or refuses; `Conflict` if a name is taken, `Missing` if there
                is no such thing.
        """
        return _told(self.host, lambda: function(*arguments, **options))

    def each(self, function: Callable[..., Any], items: str, **options: Any) -> Iterator[Any]:
        """All items of a list that comes in pages.

        Args:
            function: The list method of a generated interface.
            items: Attribute of its answer that holds the items.
            options: Its arguments.

        Raises:
            UserError: As `call`.
        """
        token = ""
        while True:
            page = self.call(function, page_token=token, page_size=100, **options)
            yield from getattr(page, items) or []
            token = page.next_page_token
            if not token:
                return


def connect(host: str = "", namespace: str = "") -> Kubeflow:
    """Connect, and make sure that the server is there and knows the user.

    Without a host, a pod connects to the server of its cluster, and a machine with a kubeconfig through the
    Kubernetes API. Credentials for a host are the token in `KFP_TOKEN`, else the token that Kubeflow mounts into
    notebooks.

    Args:
        host: Address with http:// or https://; empty: from KF_PIPELINES_ENDPOINT or KFP_ENDPOINT.
        namespace: The user's namespace, where the installation has several users; empty: a pod's own.

    Raises:
        UserError: There is no host, it cannot be reached, or it does not let the user in.
    """
    host = host or next((os.environ[name] for name in _HOST_VARIABLES if os.environ.get(name)), "")
    if namespace and not is_namespace(namespace):
        raise UserError(
            f"the namespace {shown(namespace)} is not valid: it has at most 63 lower-case letters, digits and '-'"
        )
    if host:
        host = _checked_host(host)
    elif not _has_default():
        raise UserError(
            "no Kubeflow Pipelines server is named: give --host https://… or set KF_PIPELINES_ENDPOINT, run this "
            "in a pod of the cluster, or have a kubeconfig"
        )
    if not host and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        # With a kubeconfig that it cannot read, the SDK would take this machine for the server.
        connect_to_cluster()
    # Its warnings about retries would stand beside the one sentence.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    where = host or "the cluster of this machine's kubeconfig or pod"
    return _told(where, lambda: _open(host, namespace, where))


def named(key: str, value: str) -> str:
    """The filter of a list method that keeps items whose field has this value."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": key, "stringValue": value}]})


class _Client(kfp.Client):
    """The SDK's client without long retries and without a file that remembers the namespace."""

    def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
        _guard(self._healthz_api.api_client.rest_client)
        return self._healthz_api.healthz_service_get_healthz()

    def set_user_namespace(self, namespace: str) -> None:
        self._context_setting["namespace"] = namespace


def _open(host: str, namespace: str, where: str) -> Kubeflow:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = _Client(
            host or None,
            # With a token but no host, the SDK would take this machine for the server.
            existing_token=_token() if host else None,
            credentials=ServiceAccountTokenVolumeCredentials() if _has_mounted_token() else None,
            ssl_ca_cert=os.environ.get("SSL_CERT_FILE"),
        )
    several_users = bool(client.get_kfp_healthz().multi_user)
    namespace = (namespace or client.get_user_namespace()) if several_users else ""
    if several_users and not namespace:
        raise UserError(f"{where} serves several users: name your namespace with --namespace or KFP_NAMESPACE")
    links = client._get_url_prefix().rstrip("/")
    return Kubeflow(
        where,
        namespace,
        links,
        client._run_api,
        client._recurring_run_api,
        client._experiment_api,
        client._pipelines_api,
        client._upload_api,
    )


def _guard(rest: Any) -> None:
    """Bound the time of every request, and notice a login page, which comes as a success."""
    if hasattr(rest, "unguarded"):
        return
    rest.pool_manager.connection_pool_kw["retries"] = urllib3.Retry(
        total=None, connect=1, read=0, redirect=5, other=0
    )
    rest.unguarded = rest.request

    def request(method: str, url: str, **options: Any) -> Any:
        options["_request_timeout"] = options.get("_request_timeout") or _TIMEOUT_S
        answer = rest.unguarded(method, url, **options)
        if (answer.getheader("content-type") or "").startswith("text/html"):
            error = kfp_server_api.ApiException(status=401, reason="login page")
            error.body = b""
            raise error
        return answer

    rest.request = request


def _told(host: str, function: Callable[[], Any]) -> Any:
    """Call a function, with the errors of the connection as sentences for people."""
    try:
        return function()
    except kfp_server_api.ApiException as error:
        kind = {404: Missing, 409: Conflict}.get(error.status, UserError)
        raise kind(_refusal(host, error)) from None
    except urllib3.exceptions.HTTPError as error:
        raise UserError(_unreachable(host, error)) from None
    except OSError as error:
        raise UserError(
            f"the credentials for {host} cannot be read: {error.filename or ''} {error.strerror or error}"
        ) from None


def _refusal(host: str, error: Any) -> str:
    words = _words(error.body)
    if error.status in (401, 403):
        # 403 with words is a right that is missing; without, or as a page, a proxy asks for a login.
        if error.status == 403 and words:
            return f"{host} does not allow this: {words}; ask for the right, or name another --namespace"
        return f"{host} asks for a login ({error.status}): {_LOG_IN}"
    if error.status == 404 and not words:
        return (
            f"{host} has no Kubeflow Pipelines at this address (404): name the address of its API, which ends in "
            "/pipeline behind Kubeflow's central dashboard"
        )
    if error.status >= 500:
        return f"{host} failed ({error.status}{f': {words}' if words else ''}): try again later, or see its logs"
    return f"{host} refused ({error.status}): {words or error.reason}"


def _unreachable(host: str, error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
    if isinstance(reason, urllib3.exceptions.SSLError):
        return (
            f"{host} is not trusted (TLS: {_short(str(reason))}): set SSL_CERT_FILE to the certificate of its "
            "authority, or use http:// if it speaks no TLS"
        )
    if isinstance(reason, urllib3.exceptions.LocationValueError):
        return f"{host} is not an address that can be connected to: correct it"
    if isinstance(reason, urllib3.exceptions.NameResolutionError):
        return f"the name in {host} is not known: check the spelling, and the VPN if there is one"
    if isinstance(reason, urllib3.exceptions.NewConnectionError):
        return f"nothing answers at {host}: check the address, and that the port is forwarded or the VPN is up"
    if isinstance(reason, urllib3.exceptions.ResponseError):
        return f"{host} leads from one page to the next, as a login does: {_LOG_IN}"
    if isinstance(reason, urllib3.exceptions.TimeoutError):
        return f"{host} did not answer in time: check the address and the network, then try again"
    return (
        f"the connection to {host} broke, so it is not known whether the request was carried out: look in its web "
        "interface before you try again"
    )


def _words(body: Any) -> str:
    """What the server says in its JSON; empty for pages of proxies and the like."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        content = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(content, dict):
        return ""
    # Uploads are answered by another part of the server, in another form.
    words = str(content.get("message") or content.get("error_message") or content.get("error") or "")
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    return _short(words.replace(token, "…") if token else words)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else f"{text[:400]} …"


def _checked_host(host: str) -> str:
    """The address as the SDK takes it.

    Raises:
        UserError: It is none, or holds more than an address; it may be a password, which is not shown then.
    """
    if any(sign in host for sign in "@?#"):
        raise UserError(
            "the host has more in it than an address: leave out users and passwords, and what begins with ? or #, "
            f"as in http://localhost:8080; a token goes into {TOKEN_VARIABLE}"
        )
    host = host.strip()
    try:
        parts = urlsplit(host)
        # Reading the port checks it.
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not host.isprintable() or " " in host:
        raise UserError(
            f"the host {host!r} is not an address: write it with http:// or https://, as in http://localhost:8080"
        )
    return urlunsplit(parts).rstrip("/")


def _token() -> str | None:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise UserError(f"{TOKEN_VARIABLE} holds no token, but line breaks or letters that none has: set it anew")
    return token or None


def _has_default() -> bool:
    """Whether the SDK finds a server by itself: in a pod, or through a kubeconfig."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    files = os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)
    return any(Path(name).expanduser().is_file() for name in files if name)


def _has_mounted_token() -> bool:
    return Path(os.environ.get(KF_PIPELINES_SA_TOKEN_ENV) or KF_PIPELINES_SA_TOKEN_PATH).is_file()
