"""Which launcher a run gets."""

from typing import Literal, cast

from components.cluster.inside import is_inside
from training.config import ClusterConfig
from training.errors import UserError


def launcher_name(cluster: ClusterConfig) -> Literal["local", "pytorchjob", "trainjob"]:
    """`local`, `pytorchjob` or `trainjob`: as configured, or the kind of job that this cluster has.

    Raises:
        UserError: The cluster has neither kind.
    """
    if cluster.launcher != "auto":
        return cluster.launcher
    if not is_inside():
        return "local"
    # Here, because the client takes half a second to import and a run on one machine does without.
    from components.cluster.client import connect
    from components.cluster.kinds import KINDS
    from components.cluster.probe import is_installed

    connection = connect(cluster.namespace)
    for name, kind in KINDS.items():
        if is_installed(connection, kind):
            return cast(Literal["pytorchjob", "trainjob"], name)
    raise UserError(
        "this cluster has neither PyTorchJobs nor TrainJobs: have the Kubeflow Training Operator or Kubeflow "
        "Trainer installed (deploy/kubernetes/README.md), or set cluster.launcher to local to train in the step's "
        "own pod"
    )
