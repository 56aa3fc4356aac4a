"""Thresholds of the checks and what to do about each XID: the built-in ones, with the user's over them."""

import difflib
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.errors import UserError
from training.run_folder import RunFolder
from training.store import write_atomically
from training.user_path import user_path

XidAction = Literal["isolate", "reboot", "reset", "restart", "monitor", "follow"]

_HERE = Path(__file__).parent

_SAVED = "health-policy.yaml"


class _Strict(BaseModel):
    # Strict, or `yes` would be a second.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Thresholds(_Strict):
    """See `thresholds.yaml`, which says what each means and where its value is from."""

    quick_timeout_s: float = Field(gt=0)
    driver_timeout_s: float = Field(gt=0)
    leftover_gpu_memory_mib: float = Field(ge=0)
    leftover_wait_s: float = Field(ge=0)
    ecc_uncorrected: int = Field(ge=0)
    throttle_mask: int = Field(ge=0)
    kernel_log_window_s: float = Field(ge=0)
    xid_repeats: int = Field(ge=1)
    disk_timeout_s: float = Field(gt=0)
    disk_slow_s: float = Field(gt=0)
    free_checkpoints: float = Field(ge=0)
    available_memory: float = Field(ge=0, le=1)
    memlock_gib: float = Field(ge=0)
    dns_timeout_s: float = Field(gt=0)
    peer_timeout_s: float = Field(gt=0)
    clock_skew_s: float = Field(gt=0)
    watch_every_s: float = Field(gt=0)
    deep_straggler_ratio: float = Field(gt=1)
    burn_s: float = Field(gt=0)
    pair_timeout_s: float = Field(gt=0)
    pair_mib: float = Field(gt=0)


class XidRule(_Strict):
    """What to do about an XID.

    Attributes:
        action: See `xids.yaml`.
        meaning: For people.
        source: Where it is from.
    """

    action: XidAction
    meaning: str = ""
    source: str = ""


class HealthPolicy(_Strict):
    """All that the checks are judged by."""

    thresholds: Thresholds
    xids: dict[int, XidRule]


def load_policy(path: str | Path | None = None) -> HealthPolicy:
    """The built-in policy, and over it what a user's file says.

    Args:
        path: YAML with `thresholds` (name → value) and `xids` (number → action, or a mapping with `action` and
            `meaning`), both as far as they differ.

    Raises:
        UserError: The file cannot be read, or a key, a number or a value in it is not one; all problems, a line
            each.
    """
    thresholds = yaml.safe_load((_HERE / "thresholds.yaml").read_text(encoding="utf-8"))
    xids = yaml.safe_load((_HERE / "xids.yaml").read_text(encoding="utf-8"))
    given = {} if path is None else _read(user_path(str(path)))
    problems = [
        *_unknown(given, ("thresholds", "xids"), "key", ""),
        *_unknown(given.get("thresholds") or {}, tuple(thresholds), "threshold", "thresholds."),
        *_xid_problems(given.get("xids") or {}, xids),
    ]
    if problems:
        raise UserError("\n".join(f"the health policy {path}: {problem}" for problem in problems))
    merged = {number: {**xids[number], **_rule(rule)} for number, rule in (given.get("xids") or {}).items()}
    try:
        return HealthPolicy.model_validate(
            {"thresholds": {**thresholds, **(given.get("thresholds") or {})}, "xids": {**xids, **merged}}
        )
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in error.errors()]
        raise UserError("\n".join(f"the health policy {path}: {line}" for line in lines)) from None


def save_policy(folder: RunFolder, path: str | Path | None) -> None:
    """Check the user's file and keep it in the run's folder, where pods can read it; None: there is none.

    Raises:
        UserError: See `load_policy`.
    """
    kept = folder.path / _SAVED
    if path is None:
        kept.unlink(missing_ok=True)
        return
    load_policy(path)
    write_atomically(kept, user_path(str(path)).read_text(encoding="utf-8"))


def policy_of(folder: RunFolder) -> HealthPolicy:
    """The policy of a run.

    Raises:
        UserError: See `load_policy`.
    """
    kept = folder.path / _SAVED
    return load_policy(kept if kept.is_file() else None)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UserError(
            f"the health policy {path} cannot be read ({why}): correct resilience.health_policy"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(f"the health policy {path} is not YAML: {' '.join(str(error).split())}") from None
    given = {} if content is None else content
    parts = given.values() if isinstance(given, dict) else [None]
    if not all(part is None or isinstance(part, dict) for part in parts) or not isinstance(given, dict):
        raise UserError(
            f"the health policy {path} has to be a mapping with the keys thresholds and xids, each of which is a "
            "mapping too"
        )
    return given


def _unknown(given: dict[Any, Any], allowed: tuple[str, ...], what: str, prefix: str) -> list[str]:
    return [
        f"there is no {what} {key!r}{_nearest(str(key), allowed, prefix)}" for key in given if key not in allowed
    ]


def _nearest(given: str, allowed: tuple[str, ...], prefix: str = "") -> str:
    near = difflib.get_close_matches(given, allowed, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{near[0]}?" if near else f"; there are {', '.join(allowed)}"


def _xid_problems(given: dict[Any, Any], known: dict[int, Any]) -> list[str]:
    problems = []
    for number, rule in given.items():
        if number not in known or isinstance(number, bool):
            problems.append(f"there is no rule for the XID {number!r}; {_near_xid(number, known)}")
            continue
        action = _rule(rule).get("action", known[number]["action"])
        if action not in get_args(XidAction):
            problems.append(
                f"xids.{number}: there is no action {action!r}{_nearest(str(action), get_args(XidAction))}"
            )
        problems += _unknown(_rule(rule), tuple(XidRule.model_fields), "key", f"xids.{number}.")
    return problems


def _near_xid(number: Any, known: dict[int, Any]) -> str:
    digits = "".join(character for character in str(number) if character.isdigit())
    if not digits:
        return f"give one of {', '.join(map(str, sorted(known)))}"
    near = min(known, key=lambda one: (abs(one - int(digits[:6])), one))
    return f"the nearest is {near}"


def _rule(rule: Any) -> dict[Any, Any]:
    return rule if isinstance(rule, dict) else {"action": rule}
