"""The kinds of training jobs that a cluster can have, and how each says what became of it."""

import re
from dataclasses import dataclass

LABEL = "shardline.dev"
"""Prefix of the labels and annotations that jobs and pods carry."""

RUN_LABEL = f"{LABEL}/run"
RUN_ID_LABEL = f"{LABEL}/run-id"
ATTEMPT_LABEL = f"{LABEL}/attempt"
PURPOSE_LABEL = "app.kubernetes.io/component"
"""`training` or `evaluation`."""

PROGRESS = f"{LABEL}/progress"
"""Annotation with the newest step, as JSON; see `components.cluster.progress`."""


@dataclass(frozen=True)
class JobKind:
    """One kind of job.

    Attributes:
        kind: As in a manifest.
        group: API group.
        version: API version.
        plural: As in a path.
        container: The container that trains, in each pod.
        pod_label: Label of the pods that holds the job's name.
        node_label: Label of the pods that holds the node's rank.
        succeeded: Type of the condition that says so; likewise `failed`.
    """

    kind: str
    group: str
    version: str
    plural: str
    container: str
    pod_label: str
    node_label: str
    succeeded: str
    failed: str = "Failed"

    @property
    def api_version(self) -> str:
        """As in a manifest."""
        return f"{self.group}/{self.version}"


PYTORCHJOB = JobKind(
    kind="PyTorchJob",
    group="kubeflow.org",
    version="v1",
    plural="pytorchjobs",
    container="pytorch",
    pod_label="training.kubeflow.org/job-name",
    node_label="training.kubeflow.org/replica-index",
    succeeded="Succeeded",
)

TRAINJOB = JobKind(
    kind="TrainJob",
    group="trainer.kubeflow.org",
    version="v1alpha1",
    plural="trainjobs",
    container="node",
    # A TrainJob is run by a JobSet of the same name.
    pod_label="jobset.sigs.k8s.io/jobset-name",
    node_label="batch.kubernetes.io/job-completion-index",
    succeeded="Complete",
)

KINDS = {"pytorchjob": PYTORCHJOB, "trainjob": TRAINJOB}
"""By the launcher's name in `cluster.launcher`."""


def safe_label(text: str) -> str:
    """The text as a label's value may be."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")
