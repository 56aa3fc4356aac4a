"""Whether this process runs in a cluster, asked without loading the Kubernetes client."""

import os
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""


def is_inside() -> bool:
    """Whether this process runs in a pod that may talk to its cluster."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and (ACCOUNT / "token").is_file()
