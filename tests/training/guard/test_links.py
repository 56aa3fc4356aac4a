import socket
import threading
import time

import pytest

from training.guard.links import LinkJudge, LinkWatch, Responder, peers, round_trip
from training.guard.place import Place, host_name, own_address, read_places, write_place


def place(node, port=1, host=None):
    return Place(node, host or f"host-{node}", "127.0.0.1", port, 1, (node,))


@pytest.fixture
def responder():
    responder = Responder()
    responder.start()
    yield responder
    responder.stop()


@pytest.fixture
def slow_port():
    """A peer that takes 100 ms to answer each byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            while data := connection.recv(1):
                time.sleep(0.1)
                connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


def test_a_round_trip_is_measured(responder, slow_port):
    assert round_trip(place(1, responder.port)) < 0.05
    assert 0.1 < round_trip(place(1, slow_port)) < 0.5


def test_a_peer_that_is_gone_gives_no_answer(responder):
    responder.stop()
    assert round_trip(place(1, responder.port)) is None


def test_a_link_is_slow_in_itself_and_against_what_it_was():
    judge = LinkJudge()
    assert judge(1, 0.001) is None
    assert judge(1, 0.03) is None, "many times its usual, but nothing in itself"
    assert judge(1, 0.2) == "a round trip takes 200 ms, usually 1.0 ms"
    assert judge(2, 0.2) == "a round trip takes 200 ms", "slow from the beginning"
    assert judge(1, None) == "no answer in 5 s"
    assert judge(1, 0.002) is None


def test_the_next_nodes_of_the_ring_are_measured():
    places = {node: place(node) for node in range(12)}
    assert [peer.node for peer in peers(10, places)] == [11, 0, 1, 2, 3, 4, 5, 6]
    assert peers(0, {0: place(0)}) == []
    assert peers(0, {0: place(0), 1: place(1, port=0)}) == [], "it does not answer"


def test_a_watch_tells_of_every_look_that_finds_a_slow_link(slow_port):
    found = []
    places = {0: place(0), 1: place(1, slow_port)}
    watch = LinkWatch(0, lambda: places, lambda peer, problem: found.append((peer.host, problem)), every_s=0.05)
    watch.start()
    deadline = time.monotonic() + 10
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
    watch.stop()
    assert found[0][0] == "host-1" and "a round trip takes" in found[0][1]


def test_a_look_finds_a_peer_that_does_not_answer_in_time(slow_port):
    found = []
    places = {0: place(0), 1: place(1, slow_port)}
    LinkWatch(0, lambda: places, lambda peer, problem: found.append(problem)).look(0.01)
    assert found == ["no answer in 0.01 s"]


def test_places_are_told_through_the_store(tmp_path, monkeypatch):
    assert read_places(tmp_path) == {}
    write_place(tmp_path, place(3, host="a"))
    (tmp_path / "nodes" / "4.json").write_text('{"node": 4')
    (tmp_path / "nodes" / "5.json").write_text('{"node": 5, "ranks": []}')
    assert read_places(tmp_path) == {3: place(3, host="a")}, "what is half-written is not there yet"
    monkeypatch.setenv("SHARDLINE_HOST", "ip-10-0-0-1")
    assert host_name() == "ip-10-0-0-1"
    assert own_address("127.0.0.1:29400") == "127.0.0.1"
