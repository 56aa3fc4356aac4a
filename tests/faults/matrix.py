"""All rows of the matrix, in their order."""

import traceback

from tests.faults.judge import Outcome
from tests.faults.needs import missing
from tests.faults.rows import Row, data, machines, nodes, processes, resources, saves, storm
from tests.faults.suite import Suite

_MODULES = (processes, nodes, resources, saves, data, machines)

ROWS: dict[str, Row] = {
    **{row.key: row for row in sorted((row for m in _MODULES for row in m.ROWS), key=lambda row: int(row.key))},
    **{row.key: row for row in storm.ROWS},
}


def run_row(row: Row, suite: Suite) -> Outcome | str:
    """Inject a fault and judge; or why that cannot be done here."""
    for need in ("namespaces", *row.needs) if not suite.plain else row.needs:
        if (why := missing(need)) is not None:
            return why
    try:
        return row.run(suite)
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Outcome(problems=[lines[0]])
