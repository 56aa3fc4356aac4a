"""A step as a process of its own: `python -m benchmarks.train_step SOURCE STORE RUN`.

Does with the step's source what kfp's executor does in a pod, and writes down when it calls the function.
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main(source: str, store: str, run: str) -> None:
    """Load the step, tell the time, and call it."""
    module: dict[str, Any] = {}
    exec(compile(Path(source).read_text(), source, "exec"), module)
    Path(store, f"{run}.called").write_text(repr(time.time()))
    model = SimpleNamespace(uri="", metadata={})
    timeline = SimpleNamespace(path=str(Path(store, f"{run}.html")))
    module["train"](store, run, "job", model, timeline, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
