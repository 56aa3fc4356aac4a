"""What an operator's controllers write about whose an object is."""


def owned_metadata(job, name, labels):
    """Metadata of an object that belongs to a job.

    On a cluster a Job and a JobSet stand between a pod and its TrainJob; here it is the TrainJob's own.
    """
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": [owner],
    }
