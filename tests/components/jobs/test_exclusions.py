"""Machines that are not used for a while, and with how many nodes a run goes on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.jobs.exclusions import exclude, excluded, exclusions, lift
from components.jobs.sizes import smaller
from training.config import check_world_size
from training.resolve import resolve
from training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    folder.path.mkdir(parents=True)
    return folder


def test_a_machine_is_excluded_for_its_time_and_told_with_its_reason(folder):
    assert excluded(folder, 0.0) == ()
    exclude(folder, {"b": "fell off the bus", "a": "ECC"}, 100, now=1000.0)
    exclude(folder, {"c": "slow"}, 10, now=1050.0)
    assert excluded(folder, 1055.0) == ("a", "b", "c")
    assert excluded(folder, 1061.0) == ("a", "b")
    assert excluded(folder, 1100.0) == ()
    assert [(e.host, e.until, e.reason) for e in exclusions(folder, 1061.0)] == [
        ("b", 1100.0, "fell off the bus"),
        ("a", 1100.0, "ECC"),
    ]


def test_all_jobs_of_a_run_share_them_and_they_can_be_lifted(folder):
    exclude(folder.seen_from("evaluation"), {"a": "x", "b": "y"}, 10**6)
    assert excluded(folder) == ("a", "b")
    lift(folder, ["a", "unknown"])
    assert excluded(folder.seen_from("evaluation")) == ("b",)


@pytest.mark.parametrize("hosts, seconds", [({}, 100), ({"a": "x"}, 0)])
def test_nothing_is_written_where_nothing_is_excluded(folder, hosts, seconds):
    exclude(folder, hosts, seconds)
    assert list(folder.path.iterdir()) == []


def test_a_clock_that_jumps_cannot_exclude_a_machine_for_longer_than_was_meant(folder):
    exclude(folder, {"a": "x"}, 1000, now=10**9)
    assert excluded(folder, 1000.0) == (), "written in the future"
    assert excluded(folder, 10**9 - 60.0) == ("a",), "clocks of two machines differ a little"


ENTRY = {"host": "a", "since": 0.0, "until": 9e9, "reason": "x"}


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "3", '["a"]', '[{"host": "a"}]']
    + [
        json.dumps([{**ENTRY, **change}])
        for change in ({"until": "late"}, {"host": 3}, {"more": 1}, {"since": None})
    ]
    + ['[{"host": "a", "since": NaN, "until": 9e9, "reason": "x"}]'],
)
def test_a_file_that_is_damaged_excludes_nothing(folder, content):
    (folder.path / "exclusions.json").write_text(content)
    assert excluded(folder, 100.0) == ()
    exclude(folder, {"b": "y"}, 100, now=100.0)
    assert excluded(folder, 100.0) == ("b",)


def config(batch, nodes, fewest):
    return resolve(
        {
            "model": {"name": "m"},
            "data": {"train": "d.jsonl"},
            "training": {"global_batch_size": batch},
            "parallel": {"num_nodes": nodes},
            "resilience": {"min_nodes": fewest},
        }
    )


@pytest.mark.parametrize(
    "batch, nodes, fewest, procs, expected",
    [
        (24, 4, 1, 2, 3),
        (32, 4, 1, 2, 2),
        (8, 2, 1, 4, 1),
        (8, 2, 2, 4, None),
        (8, 2, None, 4, None),
        (7, 7, 2, 1, None),
        (7, 7, 1, 1, 1),
    ],
)
def test_a_run_goes_on_with_as_many_nodes_as_share_its_batch(batch, nodes, fewest, procs, expected):
    assert smaller(config(batch, nodes, fewest), nodes, procs) == expected


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.data())
def test_the_size_is_the_greatest_that_fits(factor, nodes, procs, data):
    run = config(factor * nodes * procs, nodes, data.draw(st.integers(1, nodes)))
    found = smaller(run, nodes, procs)
    fits = []
    for number in range(run.resilience.min_nodes, nodes):
        try:
            check_world_size(run, number * procs)
            fits.append(number)
        except ValueError:
            continue
    assert found == (max(fits) if fits else None)
