"""From what a Kubernetes API server answers to one sentence with a remedy."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import urllib3
from kubernetes.client import ApiException

from training.errors import UserError

_LONGEST_WAIT_S = 60.0


class ClusterRefused(UserError):
    """The API server refused a request, and would again.

    Attributes:
        status: HTTP status.
        reason: Kubernetes' own word for it, such as AlreadyExists.
    """

    def __init__(self, sentence: str, status: int, reason: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason


class ClusterUnavailable(RuntimeError):
    """The API server did not answer, or could not for now; the same request may succeed later.

    Attributes:
        retry_after_s: What the server asked to wait, where it said so; at most a minute.
    """

    def __init__(self, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


@contextlib.contextmanager
def api_errors(doing: str) -> Iterator[None]:
    """Turn the client's exceptions in a block into sentences.

    Args:
        doing: What the block does, as in `create the PyTorchJob 'a' in the namespace 'b'`.

    Raises:
        ClusterRefused: Trying again would end the same way.
        ClusterUnavailable: It may not.
    """
    try:
        yield
    except ApiException as error:
        raise _translate(error, doing) from None
    except urllib3.exceptions.HTTPError as error:
        raise ClusterUnavailable(
            f"cannot {doing}: the Kubernetes API server does not answer ({type(_cause(error)).__name__}); check "
            "that the cluster is up and can be reached from here"
        ) from None
    except json.JSONDecodeError:
        raise ClusterUnavailable(
            f"cannot {doing}: what answered is not a Kubernetes API server; check what stands between it and here"
        ) from None


def _translate(error: ApiException, doing: str) -> ClusterRefused | ClusterUnavailable:
    answer = _answer(error)
    code = error.status or answer.get("code") or 0
    reason = str(answer.get("reason") or error.reason or "")
    said = _one_line(str(answer.get("message") or error.reason or ""))
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return ClusterRefused(
            f"cannot {doing}: the API server's certificate is not trusted ({said}): correct the kubeconfig's "
            "certificate-authority",
            code,
            reason,
        )
    if code in (0, 408, 429) or code >= 500:
        return ClusterUnavailable(
            f"cannot {doing}: the API server answered {code or 'nothing'} ({said}){_remedy_for_server(said)}",
            _retry_after(error, answer),
        )
    return ClusterRefused(f"cannot {doing}: {_explain(code, reason, said, answer)}", code, reason)


def _explain(code: int, reason: str, said: str, answer: dict[str, Any]) -> str:
    if code == 401:
        return (
            f"the cluster does not accept the credentials ({said}): log in again, or renew the kubeconfig's token"
        )
    if code == 403 and "admission webhook" in said:
        return f"the cluster's admission refused it ({said}): change what it names"
    if code == 403 and "exceeded quota" in said:
        return f"the namespace's quota does not allow it ({said}): ask for less, or for a greater quota"
    if code == 403:
        return f"it is not permitted ({said}): have an administrator bind the role in deploy/kubernetes/base"
    if code == 404 and not answer:
        return (
            "the cluster does not know this kind (404): install the Kubeflow Training Operator (PyTorchJob) or "
            "Kubeflow Trainer (TrainJob), see deploy/kubernetes/README.md"
        )
    if code == 404:
        return f"it is not there ({said}): check the name and the namespace"
    if code == 409 and reason == "AlreadyExists":
        return f"the name is taken ({said}): choose another name, or delete what has it"
    if code == 409:
        return f"it was changed or is being deleted at this moment ({said}): try again shortly"
    if code == 410:
        return f"what was asked for is too old ({said}): list it anew"
    if code == 415 or (code == 400 and "decoding error" in said):
        return f"the request does not fit the cluster's version of this kind ({said}): upgrade the operator"
    if code in (400, 422):
        return (
            f"what is asked for is not valid ({_causes(answer) or said}): correct the setting that it comes from"
        )
    return f"the API server answered {code} ({said})"


def _remedy_for_server(said: str) -> str:
    if "failed calling webhook" in said:
        return "; the training operator is not running: look at its deployment"
    if "storage is (re)initializing" in said or "etcd" in said:
        return "; the cluster's store has trouble: try again later"
    return "; try again later"


def _answer(error: ApiException) -> dict[str, Any]:
    """The Status object of an answer; empty where it is none, as for a path that the server does not know."""
    try:
        body = json.loads(error.body or "")
    except (TypeError, ValueError):
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}


def _causes(answer: dict[str, Any]) -> str:
    causes = (answer.get("details") or {}).get("causes") or []
    # One without a field only says that there may be more.
    named = [cause for cause in causes if cause.get("field") not in (None, "<nil>")]
    return _one_line("; ".join(f"{cause['field']}: {cause.get('message')}" for cause in named))


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _retry_after(error: ApiException, answer: dict[str, Any]) -> float | None:
    asked = (answer.get("details") or {}).get("retryAfterSeconds") or (error.headers or {}).get("Retry-After")
    try:
        # No more: one number too large must not make a launcher blind.
        return None if asked is None else min(float(asked), _LONGEST_WAIT_S)
    except ValueError:
        return None


def _cause(error: BaseException) -> BaseException:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, BaseException) else error
