import itertools
import math
import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs import free_port
from training.health.blame import Blame, Burn, judge_burns
from training.health.deep_result import DeepResult, load_deep, save_deep
from training.health.pairing import PairTime, first_round, judge_pairs, second_round
from training.health.policy import load_policy

RATIO = load_policy().thresholds.deep_straggler_ratio

# Pairs: pure functions


@pytest.mark.parametrize("num_nodes", range(9))
def test_every_node_is_in_each_round_and_never_twice_in_a_turn(num_nodes):
    first = first_round(num_nodes)
    times = [PairTime(pair, 1.0) for turn in first for pair in turn]
    for schedule in (first, second_round(num_nodes, times)):
        for turn in schedule:
            nodes = list(itertools.chain(*turn))
            assert len(nodes) == len(set(nodes))
        met = set(itertools.chain(*itertools.chain(*schedule)))
        assert met == (set(range(num_nodes)) if num_nodes > 1 else set())


def measure(num_nodes, seconds):
    """Both rounds on nodes of which each takes its seconds; a pair takes those of the slower."""

    def times(schedule):
        return [PairTime(pair, max(seconds[node] for node in pair)) for turn in schedule for pair in turn]

    first = times(first_round(num_nodes))
    second = times(second_round(num_nodes, first))
    hosts = [f"host-{node}" for node in range(num_nodes)]
    return judge_pairs(first, second, hosts, RATIO)


noise = st.floats(0.9, 1.1)


@settings(max_examples=60, deadline=None)
@given(st.lists(noise, min_size=0, max_size=20))
def test_nobody_is_blamed_for_noise(seconds):
    assert measure(len(seconds), seconds) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(noise, min_size=3, max_size=17), st.data())
def test_a_single_bad_node_is_named_and_nobody_else(seconds, data):
    bad = data.draw(st.integers(0, len(seconds) - 1))
    factor = data.draw(st.one_of(st.floats(3, 50), st.just(math.inf)))
    seconds[bad] *= factor
    (blame,) = measure(len(seconds), seconds)
    assert blame.hosts == (f"host-{bad}",)
    assert blame.fault == ("faulty" if math.isinf(factor) else "straggler")


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 24), st.data())
def test_of_few_bad_nodes_among_many_all_are_named(num_nodes, data):
    bad = data.draw(st.sets(st.integers(0, num_nodes - 1), min_size=1, max_size=num_nodes // 4))
    factors = {node: data.draw(st.one_of(st.floats(4, 9), st.just(math.inf))) for node in sorted(bad)}
    blames = measure(num_nodes, [factors.get(node, 1.0) for node in range(num_nodes)])
    blamed = {host for blame in blames for host in blame.hosts}
    assert blamed <= {f"host-{node}" for node in bad}, "the innocent are not blamed"
    # An even number has no node that meets two others, so a bad node's partner is always another.
    if num_nodes % 2 == 0 and not any(pair <= bad for pair in map(set, first_round(num_nodes)[0])):
        assert len(blamed) == len(bad)


def test_of_two_nodes_alone_the_link_is_blamed_but_no_machine():
    assert measure(2, [1.0, 9.0]) == []
    (blame,) = measure(2, [1.0, math.inf])
    assert (blame.fault, blame.hosts) == ("link", ())


# Products: pure functions


def burn(rank, results=((1,), (2,)), seconds=10.0, device="gpu"):
    return Burn(rank, f"host-{rank}", device, results, seconds)


def test_ranks_that_agree_are_not_blamed_however_they_differ_in_kind():
    burns = [burn(0), burn(1), burn(2, ((3,), (4,)), 60.0, "cpu"), burn(3, ((3,), (4,)), 61.0, "cpu")]
    assert judge_burns(burns, RATIO) == [] == judge_burns([burn(0)], RATIO)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.data())
def test_a_rank_that_differs_from_most_is_named(num_ranks, data):
    bad = data.draw(st.integers(0, num_ranks - 1))
    burns = [burn(rank, ((1,), (2 + (rank == bad),))) for rank in range(num_ranks)]
    (blame,) = judge_burns(burns, RATIO)
    assert (blame.fault, blame.hosts) == ("faulty", (f"host-{bad}",))


def test_of_two_that_differ_the_one_that_differs_from_itself_is_wrong():
    assert [b.fault for b in judge_burns([burn(0), burn(1, ((1,), (3,)))], RATIO)] == ["disagreement"]
    (blame,) = judge_burns([burn(0), burn(1, ((1,), (2, 3)))], RATIO)
    assert (blame.fault, blame.hosts) == ("faulty", ("host-1",))


def test_a_rank_that_takes_twice_as_long_as_the_others_is_slow():
    assert judge_burns([burn(0), burn(1), burn(2, seconds=19.9)], RATIO) == []
    (blame,) = judge_burns([burn(0), burn(1), burn(2, seconds=21)], RATIO)
    assert (blame.fault, blame.hosts) == ("straggler", ("host-2",)) and "2.1 times" in blame.text


def test_results_are_kept_as_they_are(tmp_path):
    pairs = ((PairTime((0, 1), 0.5),), (PairTime((0, 1), math.inf),))
    result = DeepResult(
        ("a", "b"),
        (burn(0),),
        (1.5,),
        pairs,
        2**20,
        8,
        (Blame("faulty", ("a",), "x"), Blame("straggler", ("a",), "y")),
    )
    save_deep(result, tmp_path / "deep.json")
    assert load_deep(tmp_path / "deep.json") == result
    assert result.bad_hosts == {"a": "x; y"}
    # 16 ranks: 2 · 15/16 of a MiB in half a second.
    assert result.gbytes_per_s(pairs[0][0]) == pytest.approx(2 * 15 / 16 * 2**20 / 0.5 / 1e9)
    assert result.gbytes_per_s(pairs[1][0]) == 0
    (tmp_path / "deep.json").write_text('{"hosts": ["a"]}')
    assert load_deep(tmp_path / "deep.json") is None and load_deep(tmp_path / "none") is None


# Ranks


def deep_rank(rank, world_size, port, output):
    """One rank, each on a node of its own: the second loses its links, the third gets bits wrong."""
    from training.health import burn, links
    from training.health import rank as entry

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SHARDLINE_HOST": f"host-{rank}",
    }
    torch.set_num_threads(1)
    if rank == 2:
        digest = burn.Products._digest
        burn.Products._digest = lambda self, product: digest(
            self, product.view(torch.int32).bitwise_xor_(1).view(torch.float32)
        )
    if rank == 1:
        # Its partners wait for it, as for a machine that the network has lost.
        links._measure = lose
    policy = load_policy()
    limits = policy.thresholds.model_copy(update={"burn_s": 0.1, "pair_mib": 0.25, "pair_timeout_s": 1.0})
    entry._check(policy.model_copy(update={"thresholds": limits}), 1, [Path(output)], lambda text: None)
    os._exit(0)


def lose(*arguments):
    raise RuntimeError("connection lost")


def test_ranks_find_the_machines_that_fall_short(tmp_path):
    context, port, output = multiprocessing.get_context("forkserver"), free_port(), tmp_path / "deep.json"
    ranks = [context.Process(target=deep_rank, args=(r, 3, port, str(output))) for r in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0, 0]
    result = load_deep(output)
    assert result.hosts == ("host-0", "host-1", "host-2")
    assert [len(burn.results) for burn in result.burns] == [4] * 3
    assert [len(pairs) for pairs in result.pairs] == [3, 3]
    wrong = [blame for blame in result.blames if blame.fault != "straggler"]
    assert [(blame.fault, blame.hosts) for blame in wrong] == [("faulty", ("host-2",)), ("faulty", ("host-1",))]
