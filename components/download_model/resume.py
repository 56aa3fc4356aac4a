"""Fetching a file from where an earlier try ended."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from training.errors import UserError
from training.s3 import S3Object, s3_errors

_COPY_BYTES = 2**22


def resume_from_hub(repo: str, commit: str, name: str, size: int | None, target: Path) -> None:
    """Fetch a file of a hub model; one that is there whole is left.

    The hub's own `snapshot_download` begins a file anew in each process. Connections that are cut are mended by
    its client.

    Args:
        repo: Hub id.
        commit: Commit; the folder of the target holds files of no other.
        name: Of the file.
        size: Its bytes, if they are known.
        target: File for it. A part of it has another name.

    Raises:
        UserError: The file is too large for plain HTTP. What else the hub raises is for `hub_errors`.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # it comes by __getattr__

    if size is not None and size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        raise UserError(
            f"{name} of the hub model '{repo}' has {size / 1e9:.0f} GB, and the hub hands out no more than "
            f"{constants.MAX_HTTP_DOWNLOAD_SIZE / 1e9:.0f} GB over HTTP: fetch the model with `hf download` into "
            "a folder, and set model.name to it"
        )
    with _part(target, size) as part:
        if part is not None:
            # The client sends the token to the hub alone, and none to where the hub redirects it.
            url, headers = hf_hub_url(repo, name, revision=commit), build_hf_headers()
            http_get(url, part, resume_size=part.tell(), headers=headers, expected_size=size)


def resume_from_s3(source: S3Object, target: Path) -> None:
    """Fetch an object; one that is there whole is left.

    Args:
        source: The object; the folder of the target holds nothing of another that had its name.
        target: File for it. A part of it has another name.

    Raises:
        UserError: It cannot be read, or has changed.
    """
    with _part(target, source.size) as part:
        if part is not None:
            with s3_errors(source.address), source.open(part.tell()) as stream:
                shutil.copyfileobj(stream, part, _COPY_BYTES)


@contextlib.contextmanager
def _part(target: Path, size: int | None) -> Iterator[BinaryIO | None]:
    """What there is of a file, to be gone on with at its end, and its name when it is whole; None if it is."""
    if target.is_file():
        yield None
        return
    path = target.with_name(f"{target.name}.part")
    with path.open("ab") as file:
        if size is not None and file.tell() > size:
            file.truncate(0)  # two processes wrote to it at once
            file.seek(0)
        yield file
    path.rename(target)
