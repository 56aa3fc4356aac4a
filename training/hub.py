"""The Hugging Face hub: which commit a name stands for, and what its errors mean to a user."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Literal

from training.errors import UserError

Kind = Literal["model", "dataset"]

_TIMEOUT_S = 10.0

_INSTEAD: dict[Kind, str] = {
    "model": "set model.name to a local folder or a .gguf file",
    "dataset": "set data.train to a .jsonl file",
}


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a hub id: `name` or `org/name`."""
    part = r"[A-Za-z0-9]([\w.-]{0,94}[\w-])?"
    return re.fullmatch(rf"{part}(/{part})?", name) is not None and ".." not in name and "--" not in name


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a full commit, which never moves."""
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def pin_repo(name: str, revision: str | None, kind: Kind) -> str:
    """The commit that a branch or tag stands for now; a full commit is returned as it is, without network.

    Args:
        name: Hub id.
        revision: Branch, tag or commit; None is the default branch.
        kind: What the id names.

    Returns:
        40 hex digits.

    Raises:
        UserError: No such repository or revision, no access to it, or no network.
    """
    if revision is not None and is_commit(revision):
        return revision
    return look_up(name, revision, kind)


def look_up(name: str, revision: str | None, kind: Kind) -> str:
    """Ask the hub for the commit of a revision, and for access to it.

    Without network this fails at once, where downloads would try again for half a minute.

    Raises:
        UserError: As `pin_repo`.
    """
    quiet_libraries()
    from huggingface_hub import HfApi

    api = HfApi()
    with hub_errors(name, revision, kind):
        info = api.repo_info(name, repo_type=kind, revision=revision, timeout=_TIMEOUT_S)
        # The hub tells everyone about a gated repository, and refuses its files only.
        if getattr(info, "gated", False):
            api.auth_check(name, repo_type=kind)
    assert info.sha is not None
    return info.sha


@contextlib.contextmanager
def hub_errors(name: str, revision: str | None, kind: Kind) -> Iterator[None]:
    """Turn the hub's errors into sentences that name the remedy; a fault of the hub itself passes through."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # it comes by __getattr__

    what = "data set" if kind == "dataset" else "model"
    page = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/{'datasets/' * (kind == 'dataset')}{name}"
    field = "data" if kind == "dataset" else "model"
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"the {what} '{name}' is gated: accept its licence at {page}, and give an access token of that "
            "account in the environment variable HF_TOKEN (in a cluster: from a secret)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"the hub has no {what} '{name}', or it is private, and there is no file or folder of this name: "
            f"check the spelling at {page}; a private one needs an access token in the environment variable "
            "HF_TOKEN (in a cluster: from a secret)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"the {what} '{name}' has no revision '{revision}': set {field}.revision to a branch, tag or "
            f"commit that is listed at {page}/tree/main, or to null"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        httpx.TransportError,
        ConnectionError,
    ) as error:
        raise UserError(
            f"the {what} '{name}' is taken from the Hugging Face hub, which cannot be reached "
            f"({_first_line(error)}): check the network and HF_ENDPOINT, or {_INSTEAD[kind]}"
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response.status_code not in (401, 403):
            raise
        raise UserError(
            f"the hub refuses access to the {what} '{name}' ({_first_line(error)}): check that the token in "
            "HF_TOKEN is valid and may read it"
        ) from error


def quiet_libraries() -> None:
    """Keep progress bars and hints of the Hugging Face libraries out of a step's log; errors stay.

    Call it before they are imported: they read these variables only then.
    """
    for name, value in {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)


def one_line(error: BaseException) -> str:
    """A library's message on one line, to be part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
