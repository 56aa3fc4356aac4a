"""How long things take, in seconds. A real cluster is slower; the order of events is the same."""

from dataclasses import dataclass


@dataclass
class Lags:
    schedule: float = 0.01
    collect: float = 0.02
    """From an owner's end to the deletion of what it owned (0 to 0.5 on a cluster)."""
    create: float = 0.05
    """Until a pod has its sandbox."""
    start: float = 0.03
    pull: float = 0.1
    """Until a pull has failed (20 on a cluster where the registry does not answer)."""
    retry: float = 0.2
    """Between tries of what does not start."""
    phase: float = 0.2
    """From a container's exit to its pod's phase (1.1 on a cluster)."""
    log_end: float = 0.1
    """From a container's exit to the end of streams that follow its log (1.0 on a cluster)."""
    remove: float = 0.1
    """From the end of a deleted pod's container to the pod's removal (0.2 to 1)."""
    node_lost: float = 0.2
    """Until a silent node is marked (45 on a cluster)."""
    toleration: float = 0.01
    """By what `tolerationSeconds` is multiplied: 300, the default, becomes 3."""
