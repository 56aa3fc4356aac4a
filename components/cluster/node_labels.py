"""What SageMaker HyperPod says of machines, by labels of their nodes.

Source: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html
"""

from collections.abc import Mapping

HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"

UNFIT = ("Unschedulable", "UnschedulablePendingReboot", "UnschedulablePendingReplacement")
"""Values of `HEALTH_LABEL` of machines that must not be used, or are about to be rebooted or replaced."""

_DEEP_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"


def why_unfit(labels: Mapping[str, str]) -> str | None:
    """What speaks against a machine with these labels; None: nothing."""
    if (status := labels.get(HEALTH_LABEL)) in UNFIT:
        return f"HyperPod says it is {status}"
    if labels.get(_DEEP_LABEL) == "Failed":
        return "it failed HyperPod's deep health check"
    return None
