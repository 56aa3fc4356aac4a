"""Answers that last are ended from outside, and never left half read on a connection."""

import threading
import time

import pytest
import urllib3

from components.cluster.streams import Splitter, Stream, lines


def follow(cluster, pod="pod"):
    return cluster.core.read_namespaced_pod_log(pod, "demo", follow=True, _preload_content=False)


def is_closed(fake):
    return all(stream.gone() for stream in list(fake.server.http._open))


def test_an_answer_that_is_left_early_is_closed(fake, cluster):
    fake.run_pod("pod", lines=["one"])
    chunks = Stream().chunks(follow(cluster))
    assert next(chunks) == b"one\n"
    assert not is_closed(fake)
    chunks.close()
    fake.wait(lambda: is_closed(fake))
    assert len(cluster.core.list_namespaced_pod("demo").items) == 1, "the next request has its own answer"


def test_a_reader_that_waits_is_woken_up(fake, cluster):
    fake.run_pod("pod", lines=["one"])
    stream, read = Stream(), []

    def reader():
        try:
            read.extend(stream.chunks(follow(cluster)))
        except urllib3.exceptions.ProtocolError:
            read.append("ended")

    thread = threading.Thread(target=reader)
    thread.start()
    fake.wait(lambda: fake.server.http._open)
    time.sleep(0.1)
    stream.end()
    thread.join(1)
    assert not thread.is_alive() and read[-1] == "ended"
    fake.wait(lambda: is_closed(fake))


def test_after_the_end_nothing_is_read(fake, cluster):
    fake.run_pod("pod", lines=["one"])
    stream, response = Stream(), follow(cluster)
    stream.end()
    assert list(stream.chunks(response)) == []
    fake.wait(lambda: is_closed(fake))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb", b"c\n\n", b"d"], [b"a", b"bc", b"", b"d"]),
        ([b"a\n"], [b"a"]),
        ([], []),
        ([b"a", b"b", b"\nc\n"], [b"ab", b"c"]),
    ],
)
def test_lines_do_not_depend_on_chunks(chunks, expected):
    assert list(lines(iter(chunks))) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_stream_is_cut_into_lines_of_a_greatest_length(size):
    text = b"abcdefgh\n\nij\nklmnopq\nrs"
    split = Splitter(longest=5)
    found = [line for start in range(0, len(text), size) for line in split.feed(text[start : start + size])]
    assert found == [b"abcde", b"", b"ij", b"klmno"] and split.rest == b"rs"
