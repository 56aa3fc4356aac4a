"""One at a time may move an alias.

MLflow has no compare-and-set, so who wants to move an alias writes a claim as a tag of the registered model, and
then looks for the claims of others. Of two who claim at once each sees the other's, unless one was done before; so
nobody moves the alias who has not, after his own claim was written, seen that it is the only one. If both see
both, the one whose claim sorts last withdraws and tries again.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

from training.errors import UserError

_PREFIX = "shardline.claim."

_STALE_S = 120.0
"""A claim that is older was left by a process that died. Moving an alias takes some seconds."""

_PATIENCE_S = 150.0

_PAUSE_S = 0.3


@contextlib.contextmanager
def turn(client: Any, name: str, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Hold the turn at a registered model's aliases for the block.

    Args:
        client: The `MlflowClient`.
        name: Name of the registered model.
        patience_s: How long to wait for others.

    Raises:
        UserError: Others did not finish in time.
    """
    deadline = time.monotonic() + patience_s
    key = f"{_PREFIX}{secrets.token_hex(6)}"
    while True:
        client.set_registered_model_tag(name, key, json.dumps(time.time()))
        others = _claims(client, name) - {key}
        if not others:
            break
        # The first keeps its claim and waits for the others to withdraw; they make room.
        if min(others) < key:
            _withdraw(client, name, key)
        if time.monotonic() > deadline:
            _withdraw(client, name, key)
            raise UserError(
                f"another process has been moving an alias of '{name}' for {patience_s:.0f} s: run this again "
                "when it is done"
            )
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        _withdraw(client, name, key)


def _claims(client: Any, name: str) -> set[str]:
    tags = client.get_registered_model(name).tags
    return {key for key, value in tags.items() if key.startswith(_PREFIX) and not _is_stale(value)}


def _is_stale(value: str) -> bool:
    try:
        return time.time() - float(value) > _STALE_S
    except ValueError:
        return True


def _withdraw(client: Any, name: str, key: str) -> None:
    from mlflow.exceptions import MlflowException

    # It may be withdrawn already.
    with contextlib.suppress(MlflowException):
        client.delete_registered_model_tag(name, key)
