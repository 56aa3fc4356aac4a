"""Imports what the ranks of a job need, in the process that they are forked from."""

import importlib
import os
from contextlib import suppress

MODULES_VARIABLE = "SHARDLINE_IMPORTS"
"""Names of modules, with spaces between them."""

for _module in os.environ.get(MODULES_VARIABLE, "").split():
    # What cannot be imported fails in the ranks, which tell of it.
    with suppress(Exception):
        importlib.import_module(_module)
