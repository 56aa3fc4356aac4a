"""The conditions of a job's status, as the training operator keeps them."""

from tests.doubles.cluster.objects import timestamp


def set_condition(status, kind, reason, message, value="True"):
    """Add or replace a condition; the end of a job also ends its Running, without another word."""
    conditions = status.get("conditions") or []
    current = next((each for each in conditions if each["type"] == kind), None)
    if current and (current["status"], current["reason"]) == (value, reason):
        return
    now = timestamp()
    since = current["lastTransitionTime"] if current and current["status"] == value else now
    kept = []
    for each in conditions:
        if each["type"] == kind or {each["type"], kind} == {"Running", "Restarting"}:
            continue
        if each["type"] == "Running" and kind in ("Succeeded", "Failed"):
            each = {**each, "status": "False"}
        kept.append(each)
    new = {
        "lastTransitionTime": since,
        "lastUpdateTime": now,
        "message": message,
        "reason": reason,
        "status": value,
        "type": kind,
    }
    status["conditions"] = [*kept, new]


def is_true(status, kind):
    return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions") or [])


def is_finished(status):
    return is_true(status, "Succeeded") or is_true(status, "Failed")
