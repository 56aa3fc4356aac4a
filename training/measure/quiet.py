"""What lm-eval says of each task that it knows, held back."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """Have lm-eval tell errors only, for the block."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
