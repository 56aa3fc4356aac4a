"""Imports what the ranks of a job need, in the process that they are forked from."""

import importlib
import os
import signal
from contextlib import suppress

MODULES_VARIABLE = "SHARDLINE_IMPORTS"
"""Names of modules, with spaces between them."""

# Who ends a machine tells all of its processes. This one has to outlive the ranks, which take it for theirs.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

for _module in os.environ.get(MODULES_VARIABLE, "").split():
    # What cannot be imported fails in the ranks, which tell of it.
    with suppress(Exception):
        importlib.import_module(_module)
