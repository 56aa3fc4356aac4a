"""Paths as users write them."""

from pathlib import Path

from training.errors import UserError


def user_path(name: str, start: Path | None = None) -> Path:
    """The path that a name stands for, which may begin with a home (`~`). It need not lead anywhere.

    Args:
        name: As the user wrote it.
        start: Where a relative path begins. None is the working folder.

    Raises:
        UserError: Whether it leads anywhere cannot be told.
    """
    try:
        path = Path(start or "", Path(name).expanduser())
        path.exists()
    except RuntimeError:
        raise UserError(
            f"'{name}' begins with the home of nobody who is known here: write the path in full"
        ) from None
    except OSError as error:
        raise UserError(
            f"'{name[:200]}' cannot be looked at ({error.strerror}): correct the name, or the permissions of the "
            "folders in it"
        ) from error
    return path
