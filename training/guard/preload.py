"""Imports what the ranks of a job need, in the process that they are forked from.

For that process alone: it changes how the process that imports it takes signals.
"""

import importlib
import os
import signal
from contextlib import suppress

from training.guard.warm import MODULES_VARIABLE

# Who ends a machine tells all of its processes. This one has to outlive the ranks, which take it for theirs.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

for _module in os.environ.get(MODULES_VARIABLE, "").split():
    # What cannot be imported fails in the ranks, which tell of it.
    with suppress(Exception):
        importlib.import_module(_module)
