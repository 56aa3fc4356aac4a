"""Whether the nodes of a job can meet through the etcd server that the configuration names."""

import importlib.util

import requests

from components.cluster.inside import is_inside
from components.preflight.checks import Finding
from training.errors import UserError

_TIMEOUT_S = 5


def find_etcd(endpoint: str, *, own_image: bool) -> Finding:
    """Ask the server for its API of version 2, the only one that torchrun speaks.

    Args:
        endpoint: HOST:PORT.
        own_image: Whether the job's pods have the image that this process runs in.

    Raises:
        UserError: It does not answer, or not to that API, or the Python package for it is missing.
    """
    if own_image and importlib.util.find_spec("etcd") is None:
        raise UserError(
            "cluster.rendezvous is etcd, but the package python-etcd is not in the image: build it with the extra "
            "'etcd', or set cluster.rendezvous to c10d"
        )
    try:
        status = requests.get(f"http://{endpoint}/v2/keys/", timeout=_TIMEOUT_S).status_code
    except requests.RequestException as error:
        if not is_inside():
            # Names of services mean nothing outside of the cluster.
            return Finding("rendezvous", True, f"etcd at {endpoint}, which cannot be reached from here")
        raise UserError(
            f"there is no answer from the etcd server in cluster.etcd_endpoint, {endpoint} "
            f"({type(error).__name__}): check the address and that the server runs, or set cluster.rendezvous to "
            "c10d"
        ) from None
    if status != 200:
        raise UserError(
            f"the etcd server in cluster.etcd_endpoint, {endpoint}, does not offer the API of version 2 (HTTP "
            f"{status}): start an etcd of version 3.5 or earlier with --enable-v2, or set cluster.rendezvous to "
            "c10d"
        )
    return Finding("rendezvous", True, f"etcd at {endpoint}")
