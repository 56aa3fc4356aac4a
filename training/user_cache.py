"""Where this user's caches are."""

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """A folder for what can be made again, below XDG_CACHE_HOME or ~/.cache; it need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline" / name
