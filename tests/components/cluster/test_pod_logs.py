"""Every line of every pod once, whatever happens to the streams."""

import contextlib
import re
import socket
import threading
import time
from collections import defaultdict

import kubernetes
import pytest

from components.cluster import logs
from components.cluster.client import Cluster
from components.cluster.job_state import pod_end
from components.cluster.kinds import PYTORCHJOB
from components.cluster.logs import LogFollower

SECOND = 10**9


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(logs, "_PAUSES_S", (0.02, 0.05))


class Lines(defaultdict):
    """Takes lines, by their pod."""

    def __init__(self):
        super().__init__(list)

    def take(self, pod, fresh):
        self[pod] += fresh


@pytest.fixture
def lines():
    return Lines()


def has_ended(fake):
    def ask(name):
        return any(pod_end(PYTORCHJOB, pod) for pod in fake.pods() if pod["metadata"]["name"] == name)

    return ask


@pytest.fixture
def follower(fake, cluster, lines):
    follower = LogFollower(cluster, "pytorch", lines.take, has_ended(fake))
    yield follower
    follower.finish(0)


ODD = [
    (b"progress 10%\rprogress 100%\r\n", "progress 10%\rprogress 100%\r"),
    (b"bad utf8: \xff\xfe end\n", "bad utf8: \\xff\\xfe end"),
    (b"x" * 20_000 + b"\n", "x" * 20_000),
    (b"\n", ""),
    (b"\n", ""),
    ("Grüße aus Zürich ✓\n".encode(), "Grüße aus Zürich ✓"),
    (b'{"step": 1}\n', '{"step": 1}'),
    (b"  two  spaces  \n", "  two  spaces  "),
]


def test_lines_come_as_they_were_written(fake, follower, lines):
    pod = fake.run_pod("pod", lines=[raw for raw, _ in ODD])
    follower.follow("pod")
    fake.wait(lambda: len(lines["pod"]) == len(ODD))
    pod.log("later")
    fake.wait(lambda: lines["pod"][-1] == "later")
    follower.follow("pod")
    pod.end()
    assert follower.finish(5)
    assert lines["pod"] == [*(text for _, text in ODD), "later"]


def test_the_last_line_needs_no_newline(fake, follower, lines):
    fake.run_pod("pod", ["sh", "-c", "echo one; sleep 0.3; printf last"])
    fake.wait(lambda: fake.pods()[0]["status"]["phase"] == "Running")
    follower.follow("pod")
    fake.wait(lambda: has_ended(fake)("pod"))
    assert follower.finish(5)
    assert lines["pod"] == ["one", "last"]


def test_a_pod_that_ended_before_is_read_as_a_whole(fake, follower, lines):
    fake.run_pod("pod", ["sh", "-c", "echo one; echo two >&2; printf last; exit 3"])
    fake.wait(lambda: has_ended(fake)("pod"))
    follower.follow("pod")
    assert follower.finish(5)
    assert lines["pod"] == ["one", "two", "last"]
    assert [request.query["follow"] for request in fake.requests if "/log?" in request.path] == ["false"]


def test_cut_streams_lose_and_repeat_nothing(fake, follower, lines):
    pod = fake.run_pod("pod", lines=[])
    follower.follow("pod")
    written = []
    for number in range(60):
        # Many lines are alike, and some are of one nanosecond.
        text = f"line {number // 3} ü"
        at = time.time_ns()
        for _ in range(2):
            pod.log(text, at=at)
            written.append(text)
        if number % 3 == 0:
            fake.cut_logs()
        if number % 5 == 0:
            fake.cut_logs(after_bytes=40 + 7 * number)
        time.sleep(0.01)
    pod.end()
    assert follower.finish(10)
    assert lines["pod"] == written


def test_lines_that_stand_in_another_order_than_their_times(fake, follower, lines):
    pod = fake.run_pod("pod", lines=[])
    now = time.time_ns() // SECOND * SECOND
    steps = [0, 400, 1100, 1099, 950, 1100, 1100, 2300, 2000, 2300, 3299, 2999]
    for number, step in enumerate(steps):
        pod.log(f"{number % 3}", at=now + step * 10**6)
    fake.cut_logs(after_bytes=110)
    follower.follow("pod")
    for after in (60, 250, 190, 130):
        fake.wait(lambda: fake.server.http.log_cut is None)
        fake.cut_logs(after_bytes=after)
        fake.cut_logs()
    fake.cut_logs(after_bytes=10**9)
    pod.end()
    assert follower.finish(10)
    assert lines["pod"] == [f"{number % 3}" for number in range(len(steps))]


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503, 0])
def test_a_log_that_cannot_be_read_for_a_while(fake, follower, lines, status):
    pod = fake.run_pod("pod", lines=["one"])
    fake.fail(status, times=2, path="/log")
    follower.follow("pod")
    fake.wait(lambda: lines["pod"] == ["one"])
    fake.fail(status, times=2, path="/log")
    fake.cut_logs()
    pod.log("two")
    fake.wait(lambda: lines["pod"] == ["one", "two"])
    fake.fail(status, times=2, path="/log")
    pod.log("three")
    pod.end()
    assert follower.finish(5)
    assert lines["pod"] == ["one", "two", "three"]


def test_a_busy_server_is_asked_again_when_it_says(fake, follower, lines):
    fake.run_pod("pod", lines=["one"])
    fake.fail(429, path="/log", headers={"Retry-After": "1"})
    follower.follow("pod")
    fake.wait(lambda: lines["pod"] == ["one"])
    first, second = [request.time for request in fake.requests if "/log?" in request.path]
    assert second - first >= 1


def test_a_pod_that_has_not_started_yet(fake, follower, lines):
    fake.images = []
    fake.run_pod("pod", ["echo", "one"])
    follower.follow("pod")
    fake.wait(lambda: any(pod["status"].get("containerStatuses") for pod in fake.pods()))
    time.sleep(0.2)
    fake.images = None
    assert follower.finish(5)
    assert lines["pod"] == ["one"]


def test_a_pod_that_is_deleted_is_read_to_its_end(fake, follower, lines):
    fake.run_pod(
        "pod", ["sh", "-c", "trap 'echo leaving; printf bye; exit 143' TERM; echo one; sleep 9 & wait $!"]
    )
    fake.wait(lambda: fake.pods()[0]["status"]["phase"] == "Running")
    follower.follow("pod")
    fake.wait(lambda: lines["pod"] == ["one"])
    fake.delete_pod("pod")
    fake.wait(lambda: fake.pods() == [])
    assert follower.finish(5)
    assert lines["pod"] == ["one", "leaving", "bye"]


def test_a_last_line_without_a_newline_outlives_its_pod(fake, follower, lines):
    fake.run_pod("pod", ["sh", "-c", "echo one; sleep 0.2; printf last"])
    # As if the pod were removed as soon as it has ended.
    fake.fail(404, times=99, path="follow=false")
    fake.wait(lambda: fake.pods()[0]["status"]["phase"] == "Running")
    follower.follow("pod")
    fake.wait(lambda: has_ended(fake)("pod"))
    assert follower.finish(5)
    assert lines["pod"] == ["one", "last"]


def test_a_pod_that_is_gone_has_no_log(fake, follower, lines):
    pod = fake.run_pod("pod", lines=["one"])
    follower.follow("pod")
    follower.follow("never-was")
    fake.wait(lambda: lines["pod"] == ["one"])
    pod.log("two")
    fake.delete_pod("pod", grace=0)
    begin = time.monotonic()
    assert follower.finish(5)
    assert time.monotonic() - begin < 3
    assert lines == {"pod": ["one", "two"]}


def log_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("log-")]


def test_finish_ends_threads_and_connections_in_time(fake, follower, lines):
    for number in range(5):
        fake.run_pod(f"pod{number}", lines=["one"])
        follower.follow(f"pod{number}")
    fake.fail(500, times=10**6, path="pods/away/log")
    follower.follow("away")
    fake.wait(lambda: len(lines) == 5)
    begin = time.monotonic()
    assert follower.finish(0.2) is False
    assert time.monotonic() - begin < 1
    assert log_threads() == []
    fake.wait(lambda: all(stream.gone() for stream in list(fake.server.http._open)))


def test_a_watch_that_refuses_does_not_end_a_log(fake, cluster, lines):
    """`has_ended` may fail for a while too."""
    from components.cluster.errors import ClusterRefused

    asked = []

    def ask(name):
        asked.append(name)
        if len(asked) < 3:
            raise ClusterRefused("not now", 403, "Forbidden")
        return True

    fake.run_pod("pod", lines=["one"])
    follower = LogFollower(cluster, "pytorch", lines.take, ask)
    follower.follow("pod")
    assert follower.finish(5)
    assert lines["pod"] == ["one"]


def test_64_pods_at_once_while_streams_are_cut(fake, follower, lines):
    pods = [fake.run_pod(f"pod{number}", lines=[]) for number in range(64)]
    for pod in pods:
        follower.follow(pod.name)
    for number in range(20):
        for pod in pods:
            pod.log(f"{pod.name} {number // 2}")
        if number % 4 == 3:
            fake.cut_logs()
        fake.cut_logs(after_bytes=100 + 31 * number)
        time.sleep(0.03)
    for pod in pods:
        pod.end()
    assert follower.finish(20)
    expected = {pod.name: [f"{pod.name} {number // 2}" for number in range(20)] for pod in pods}
    assert lines == expected


class RawServer:
    """Answers each connection with the next of `answers`, as it is given."""

    def __init__(self):
        self.answers = []
        self.heads = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{self._listener.getsockname()[1]}")
        configuration.retries = False
        self.cluster = Cluster(kubernetes.client.ApiClient(configuration), "demo", "a test")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.heads.append(connection.recv(4096).decode())
                    connection.sendall(self.answers.pop(0))

    def close(self):
        # Closing alone does not wake up who waits in it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def raw():
    with contextlib.closing(RawServer()) as server:
        yield server


def chunked(*chunks):
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    )


def test_a_stream_that_is_cut_at_any_byte(raw, lines, monkeypatch):
    """In a line, a character, a chunk, the chunk's size, the head of the answer."""
    monkeypatch.setattr(logs, "_PAUSES_S", (0.001,))
    stamps = [f"2026-11-30T10:00:0{second}.5Z ".encode() for second in (1, 1, 2)]
    answer = chunked(stamps[0] + "grün\n".encode(), stamps[1] + b"\xc3", b"\xbc\n" + stamps[2] + b"end")
    for cut in range(len(answer)):
        pod = f"pod{cut}"
        raw.answers = [answer[:cut], answer]
        follower = LogFollower(raw.cluster, "pytorch", lines.take, lambda name: True)
        follower.follow(pod)
        assert follower.finish(5), cut
        assert lines[pod] == ["grün", "ü", "end"], cut


def test_a_node_in_another_zone(raw, lines):
    first = chunked(b"2026-11-30T10:00:01.5+02:00 a\n2026-11-30T10:00:02.5+02:00 b\n")
    again = chunked(b"2026-11-30T10:00:01.5+02:00 a\n2026-11-30T10:00:02.5+02:00 b\n2026-11-30T10:00:03+02:00 c\n")
    ends = iter([False, True])
    raw.answers = [first, again]
    follower = LogFollower(raw.cluster, "pytorch", lines.take, lambda name: next(ends))
    follower.follow("pod")
    assert follower.finish(5)
    assert lines["pod"] == ["a", "b", "c"]
    assert re.search(r"sinceTime=2026-11-30T10%3A00%3A01%2B02%3A00", raw.heads[1])


def test_a_line_without_an_end_is_cut_and_what_follows_is_whole(fake, follower, lines):
    pod = fake.run_pod("pod", lines=["x" * 3 * 2**20, "next"])
    follower.follow("pod")
    fake.wait(lambda: len(lines["pod"]) == 2)
    fake.cut_logs()
    pod.log("last")
    pod.end()
    assert follower.finish(5)
    first, *rest = lines["pod"]
    assert set(first) == {"x"} and 2**20 - 100 < len(first) < 2**20 and rest == ["next", "last"]


def test_a_new_pod_of_the_same_name_is_read_too(fake, follower, lines):
    def uid():
        return fake.pods()[0]["metadata"]["uid"]

    for text in ("first", "second"):
        pod = fake.run_pod("pod", lines=[text])
        follower.follow("pod", uid())
        fake.wait(lambda text=text: text in lines["pod"])
        pod.end()
        fake.wait(lambda: not follower._logs["pod"][1].is_alive())
        follower.follow("pod", uid())
        fake.delete_pod("pod", grace=0)
    assert follower.finish(5)
    assert lines["pod"] == ["first", "second"]
