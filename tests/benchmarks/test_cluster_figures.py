"""The figures about clusters are measured on the double, in processes of their own."""

import pytest

from benchmarks import launch
from benchmarks.logs import follow_in_a_process, wrong


def test_lines_that_are_lost_or_repeated_are_counted(tmp_path):
    lines = ["begin", *(f"step {number} of pod: loss" for number in range(3))]
    for found, count in ((lines, 0), (lines[:-1], 1), ([*lines, lines[2]], 1), ([*lines[1:], "else"], 2)):
        (tmp_path / "pod.log").write_text("\n".join(found))
        assert wrong(tmp_path, ["pod"], 3) == count


@pytest.mark.slow
def test_a_few_pods_are_followed():
    result = follow_in_a_process(3, 1)
    assert result["wrong"] == 0
    assert 0 < result["cpu"] < 2 and 20 < result["mib"] < 500


@pytest.mark.slow
def test_a_launch_is_timed(monkeypatch, tmp_path):
    with launch.cluster(tmp_path / "cluster"):
        from_process, from_call = launch.seconds_to_the_job(tmp_path, 1)
    assert 0 < from_call < from_process < 60
