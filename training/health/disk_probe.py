"""Writes, flushes and reads a small file: `python disk_probe.py FOLDER` prints what it took.

A process of its own, because a disk that hangs does not come back.
"""

import errno
import json
import os
import shutil
import sys
import tempfile
import time

_BYTES = 2**20

FULL = 2
"""Exit code where the disk works, and has no room."""


def main(folder: str) -> int:
    """Print seconds and free bytes as JSON; returns the exit code."""
    started = time.monotonic()
    content = os.urandom(_BYTES)
    descriptor, name = tempfile.mkstemp(prefix=".health-", dir=folder)
    try:
        if os.write(descriptor, content) < _BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        # Or the read would come from memory.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        read = os.pread(descriptor, _BYTES, 0)
    finally:
        os.close(descriptor)
        os.unlink(name)  # noqa: PTH108 - pathlib takes a third of this process's time to import
    seconds = time.monotonic() - started
    is_same = read == content
    print(json.dumps({"seconds": seconds, "is_same": is_same, "free_bytes": shutil.disk_usage(folder).free}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        sys.exit(FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
