"""Runs the graph's steps as processes of this machine: `python -m pipelines.local_graph <arguments.json>`.

A process of its own, because kfp prints freely and changes the logging of the process that it runs in; what
people see comes from the event stream instead (see `pipelines.local_run`).
"""

import json
import signal
import sys
from pathlib import Path

from kfp import local

from pipelines.finetune import finetune


def main(arguments_file: str) -> int:
    """Run `finetune` with the arguments in a JSON file; outputs go beside it. Returns the exit code."""
    # On a stop the running step is told, and fails; then this process still has the exit handler to run.
    # A handler that does nothing, rather than SIG_IGN, which the steps' processes would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: None)
    path = Path(arguments_file)
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(path.parent / "outputs"),
        raise_on_error=True,
    )
    try:
        finetune(**json.loads(path.read_text()))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
