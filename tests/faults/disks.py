"""Small disks of their own: one that fills up, and one that freezes. Both carry the suite's mark in their path."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults.marks import own_mark


@contextlib.contextmanager
def small_disk(num_mib: int, num_files: int = 512) -> Iterator[Path]:
    """A disk in memory with room for so many MiB, and for so many files and folders."""
    with _mount_point() as folder:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={num_mib}m,nr_inodes={num_files}", "tmpfs", folder], check=True
        )
        try:
            yield folder
        finally:
            _unmount(folder)


@contextlib.contextmanager
def loop_disk(num_mib: int) -> Iterator[Path]:
    """A file system on a loop device, which `frozen` can freeze."""
    with _mount_point() as folder:
        image = folder.with_suffix(".image")
        with image.open("wb") as file:
            file.truncate(num_mib * 2**20)
        try:
            subprocess.run(["mkfs.ext4", "-q", image], check=True)
            subprocess.run(["mount", "-o", "loop", image, folder], check=True)
            try:
                yield folder
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", folder], capture_output=True)
                _unmount(folder)
        finally:
            image.unlink()


def freeze(folder: Path) -> None:
    """Hold up every write from now on; also what is being written comes to no end."""
    subprocess.run(["fsfreeze", "--freeze", folder], check=True)


def thaw(folder: Path) -> None:
    """Let writes go on."""
    subprocess.run(["fsfreeze", "--unfreeze", folder], check=True)


@contextlib.contextmanager
def _mount_point() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"{own_mark()}-") as folder:
        point = Path(folder) / "disk"
        point.mkdir()
        yield point


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", folder], check=True)
