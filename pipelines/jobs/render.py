"""The manifest of a run's job, made without a cluster."""

from pathlib import Path
from typing import Any

import yaml

from components.cluster.kinds import KINDS
from components.jobs.describe import describe_job
from components.jobs.render.pytorchjob import render_pytorchjob
from components.jobs.render.trainjob import render_trainjob
from training.config import RunConfig, launcher_problems
from training.credentials import shown
from training.errors import UserError
from training.kubernetes_rules import is_namespace
from training.run_folder import RunFolder

_RENDER = {"pytorchjob": render_pytorchjob, "trainjob": render_trainjob}

STORE_CLAIM = "shardline-store"
"""The graph's own default."""


def render_manifest(
    config: RunConfig, run: str, attempt: int = 1, *, kind: str = "", store: str, namespace: str = ""
) -> dict[str, Any]:
    """The job of one attempt, as the step train would make it.

    Without what only that step knows: its own image, where the configuration names none, the settings of its task
    in Kubeflow, and the pod that owns the job.

    Args:
        config: The run's.
        run: The run's name.
        attempt: Counted from 1.
        kind: `pytorchjob` or `trainjob`; empty: as configured.
        store: Where the pods mount the store.
        namespace: Empty: as configured, or `default`.

    Raises:
        UserError: The configuration does not make a job in a cluster.
    """
    if kind and kind not in _RENDER:
        raise UserError(f"the kind '{kind}' is not known: name one of {', '.join(KINDS)}")
    if not store.startswith("/"):
        raise UserError(
            f"the store '{store}' is not a path in the pods: give an absolute one, as in /mnt/shardline"
        )
    launcher = kind or config.cluster.launcher
    if launcher == "local":
        raise UserError(
            "cluster.launcher is local, so this run makes no job in a cluster: set it to pytorchjob or trainjob, "
            "or give --kind"
        )
    if namespace and not is_namespace(namespace):
        raise UserError(
            f"the namespace {shown(namespace)} is not valid: it has at most 63 lower-case letters, digits and '-'"
        )
    if problems := launcher_problems(config.cluster.model_copy(update={"launcher": launcher})):
        raise UserError("\n".join(problems))
    if config.cluster.store_claim is None:
        claimed = config.cluster.model_copy(update={"store_claim": STORE_CLAIM})
        config = config.model_copy(update={"cluster": claimed})
    job = describe_job(config, RunFolder(store, run), attempt)
    render = _RENDER["pytorchjob" if launcher == "auto" else launcher]
    return render(job, namespace or config.cluster.namespace or "default")


def write_manifest(manifest: dict[str, Any], output: Path | None) -> str:
    """The manifest as YAML, which is also written to a file if one is named.

    Raises:
        UserError: The file cannot be written.
    """
    text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{output} cannot be written ({error.strerror}): name another file") from None
    return text
