"""The mark of a run's folder."""

import errno

import pytest

from training.run_folder import RunFolder


def test_a_disk_without_hard_links(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr("training.run_folder.os.link", refuse)
    folder = RunFolder(tmp_path, "demo")
    folder.path.mkdir(parents=True)
    mark = folder.identity()
    assert mark == folder.identity() == RunFolder(tmp_path, "demo").identity()
    assert [path.name for path in folder.path.iterdir()] == ["id"]
