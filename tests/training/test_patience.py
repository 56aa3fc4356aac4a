import errno
import os

import pytest

from training import patience
from training.events import EventReader, EventWriter, Note
from training.patience import is_of_disk, may_pass, patiently


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(patience, "_PAUSE_S", 0.01)


def stumbling(number, times):
    """A call that fails so many times."""
    left = [times]

    def call():
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return "done"

    return call


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_what_may_pass_is_tried_again(number):
    assert patiently(stumbling(number, 3)) == "done"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT])
def test_what_does_not_pass_is_told_at_once(number):
    call = stumbling(number, 1)
    with pytest.raises(OSError) as caught:
        patiently(call)
    assert caught.value.errno == number and not may_pass(caught.value) and call() == "done"


class _Gathered(Exception):
    """As torch's distributed checkpoints gather the errors of ranks."""

    def __init__(self, *errors):
        self.failures = {rank: (error, None) for rank, error in enumerate(errors)}


def caused_by(error):
    outer = RuntimeError("could not be loaded")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (TimeoutError(errno.ETIMEDOUT, "timed out", "/store/file"), True),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), False),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), False),
        (OSError(errno.ENOSPC, "full", "/store/file"), False),
        (FileNotFoundError(errno.ENOENT, "missing", "/store/file"), False),
        (KeyError("x"), False),
        (caused_by(OSError(errno.EIO, "Input/output error")), True),
        (_Gathered(KeyError("x"), OSError(errno.ESTALE, "Stale file handle")), True),
        (_Gathered(KeyError("x")), False),
    ],
)
def test_an_error_of_a_disk_is_told_from_one_of_a_connection_or_of_the_program(error, expected):
    assert is_of_disk(error) == expected


def test_patience_ends():
    with pytest.raises(OSError, match="Stale"):
        patiently(stumbling(errno.ESTALE, 10**9), patience_s=0.05)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT, errno.EIO])
def test_events_that_cannot_be_read_now_come_later(tmp_path, monkeypatch, number):
    reader = EventReader(tmp_path)
    writers = {name: EventWriter(tmp_path, name) for name in ("rank-0", "train")}
    for name, writer in writers.items():
        writer.write(Note(text=name))
    path_type = type(tmp_path)
    whole = path_type.open

    def stumble(path, *args, **more):
        if path.name == "rank-0.jsonl":
            raise OSError(number, os.strerror(number))
        return whole(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(path_type, "open", stumble)
        assert [event.text for event in reader.poll()] == ["train"]
    assert [event.text for event in reader.poll()] == ["rank-0"], "none is lost, none comes twice"
