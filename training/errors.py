"""The one exception that people are meant to read, and the exit codes of a step."""

EXIT_INVALID = 64
"""Bad configuration or data: trying again without a change ends the same way (sysexits' EX_USAGE)."""

EXIT_FAILED = 1
"""Anything else went wrong."""

EXIT_STOP = 93
"""It failed, and would again: not to be started anew without a change of the program."""

EXIT_INTERRUPTED = 143
"""Stopped by SIGTERM (128 + 15) after the state was saved."""

EXIT_NODE_SUSPECT = 201
"""The machine did not pass its checks: try again on another one."""


class UserError(ValueError):
    """A mistake that the user can mend.

    The message says what was given, what is allowed, and where to change it. Steps print it alone, without a
    traceback, and exit with `EXIT_INVALID`.
    """
