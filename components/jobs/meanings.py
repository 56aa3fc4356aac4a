"""What each class of incident means, in words for people."""

from training.run_folder import JobPurpose

_MEANINGS = {
    "invalid": "the configuration or the data is wrong",
    "interrupted": "it was asked to stop, and saved",
    "signal": "a rank was killed",
    "exception": "a rank raised an error",
    "oom": "it used more memory than it may: ask for more (cluster.memory_per_node), or {leaner}",
    "hang": "a rank went silent, and all were killed",
    "nonfinite": "a loss or a gradient was not finite, and nothing of it was saved",
    "network": "ranks could not reach each other",
    "storage": "a disk did not answer in time, or gave an error that may pass",
    "node_lost": "a machine went silent, or its node was killed",
    "node_suspect": "a machine did not pass its checks, or reported a fault of its own",
    "evicted": "the cluster removed a pod",
    "preempted": "the machine was needed or is about to go; the ranks saved and left",
    "queue_timeout": "the queue did not admit the job in time",
    "start_timeout": "the pods did not start in time; what they waited for is below",
    "run_timeout": "it took longer than it may",
    "stall_timeout": "nothing was heard of its ranks and nodes for too long",
}

_LEANER: dict[str, str] = {
    "training": "train leaner (training.micro_batch_size, training.activation_checkpointing)",
    "evaluation": "let the ranks share each model (evaluation.sharding=full)",
}


def meaning_of(what: str, purpose: JobPurpose = "training") -> str:
    """A class of incident in words.

    Args:
        what: See `training.events.Incident`.
        purpose: Of the job.
    """
    return _MEANINGS.get(what, what).format(leaner=_LEANER.get(purpose, "use larger machines"))
