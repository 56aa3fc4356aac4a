"""The newest state of every pod, whatever happens to the watch."""

import threading
import time

import pytest

from components.cluster import pod_watch
from components.cluster.client import connect
from components.cluster.errors import ClusterRefused
from components.cluster.job_state import pod_end
from components.cluster.kinds import PYTORCHJOB
from components.cluster.pod_watch import PodWatch
from tests.doubles.cluster import FakeCluster

LABELS = {PYTORCHJOB.pod_label: "job", PYTORCHJOB.node_label: "0"}


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(pod_watch, "_PAUSE_S", 0.1)


@pytest.fixture
def watch(cluster):
    watch = PodWatch(cluster, PYTORCHJOB, "job")
    yield watch
    watch.stop()


def add_pod(fake, name="job-worker-0"):
    return fake.run_pod(name, lines=[], labels=LABELS)


def names(watch):
    return [pod["metadata"]["name"] for pod in watch.pods()]


def exit_code(watch, name="job-worker-0"):
    for pod in watch.pods():
        if pod["metadata"]["name"] == name and (end := pod_end(PYTORCHJOB, pod)):
            return end.exit_code
    return None


def watches(fake):
    return [request for request in fake.requests if request.query.get("watch") == "True"]


def open_streams(fake):
    """Those whose clients still listen."""
    return [stream for stream in list(fake.server.http._open) if not stream.gone()]


def is_watching(fake, number=1):
    """Whether a watch is open, and that the last of at least so many."""
    return len(watches(fake)) >= number and open_streams(fake)


def test_what_is_there_is_known_at_once_and_what_comes_soon(fake, watch):
    add_pod(fake)
    watch.start()
    assert names(watch) == ["job-worker-0"]
    add_pod(fake, "job-worker-1")
    fake.run_pod("foreign", lines=[])
    fake.wait(lambda: names(watch) == ["job-worker-0", "job-worker-1"])
    assert watch.present() == watch.pods()


def test_the_exit_code_of_a_pod_outlives_the_pod(fake, watch):
    pod = add_pod(fake)
    watch.start()
    pod.end(3)
    fake.delete_pod("job-worker-0", grace=0)
    fake.wait(lambda: exit_code(watch) == 3)
    fake.wait(lambda: watch.present() == [])
    assert names(watch) == ["job-worker-0"]


def test_an_exit_code_is_not_lost_while_the_watch_is_cut(fake, watch):
    pod = add_pod(fake)
    watch.start()
    fake.wait(lambda: is_watching(fake))
    fake.fail(503, times=3, path="watch=True")
    fake.cut_streams()
    pod.end(7)
    fake.delete_pod("job-worker-0", grace=0)
    fake.wait(lambda: exit_code(watch) == 7)
    fake.wait(lambda: watch.present() == [])


def test_a_watch_goes_on_from_where_it_was_cut(fake, watch):
    pod = add_pod(fake)
    watch.start()
    for number in range(1, 6):
        fake.wait(lambda number=number: is_watching(fake, number))
        fake.cut_streams()
    pod.end(1)
    fake.wait(lambda: exit_code(watch) == 1)
    lists = [r for r in fake.requests if "/pods?" in r.path and "watch" not in r.query]
    assert len(lists) == 1, "nothing had to be listed anew"
    # Once its last change has been seen, a pod is never seen in an older state again.
    fake.wait(lambda: is_watching(fake, 6))
    fake.cut_streams()
    before = len(watches(fake))
    fake.wait(lambda: len(watches(fake)) > before)
    version = watch.pods()[0]["metadata"]["resourceVersion"]
    assert int(watches(fake)[-1].query["resourceVersion"]) >= int(version)


def test_a_version_that_grew_too_old_is_listed_anew(fake, watch):
    pod = add_pod(fake)
    watch.start()
    fake.wait(lambda: is_watching(fake))
    fake.fail(503, times=1, path="watch=True")
    fake.cut_streams()
    pod.end(4)
    fake.run_pod("foreign", lines=[])
    fake.compact()
    fake.wait(lambda: exit_code(watch) == 4)
    add_pod(fake, "job-worker-1")
    fake.wait(lambda: names(watch) == ["job-worker-0", "job-worker-1"])


def test_pods_that_went_unseen_are_not_present(fake, watch):
    add_pod(fake)
    watch.start()
    fake.wait(lambda: is_watching(fake))
    fake.fail(503, times=2, path="watch=True")
    fake.cut_streams()
    fake.delete_pod("job-worker-0", grace=0)
    fake.run_pod("foreign", lines=[])
    fake.compact()
    fake.wait(lambda: watch.present() == [])
    assert names(watch) == ["job-worker-0"]


def test_a_server_that_starts_anew_is_found_again(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "first") as first:
        monkeypatch.setenv("KUBECONFIG", str(first.kubeconfig))
        watch = PodWatch(connect(), PYTORCHJOB, "job")
        add_pod(first)
        watch.start()
        first.wait(lambda: is_watching(first))
    port, token = first.server.http.port, first.token
    time.sleep(0.3)  # nobody answers
    with FakeCluster(tmp_path / "second", port=port) as second:
        # Not known yet to the new one, as after a start of a real server.
        time.sleep(0.3)
        second.server.access._token = token
        add_pod(second, "job-worker-1")
        second.wait(lambda: names(watch) == ["job-worker-0", "job-worker-1"])
        assert [pod["metadata"]["name"] for pod in watch.present()] == ["job-worker-1"]
        watch.stop()


def test_a_right_that_is_lost_for_good_is_told(fake, watch, monkeypatch):
    monkeypatch.setattr(pod_watch, "REFUSED_S", 0.5)
    add_pod(fake)
    watch.start()
    fake.wait(lambda: is_watching(fake))
    fake.deny("watch", "pods")
    fake.cut_streams()
    time.sleep(0.3)
    assert names(watch) == ["job-worker-0"], "it may come back"
    fake.allow_all()
    fake.wait(lambda: is_watching(fake, 2))
    fake.deny("*", "pods")
    fake.cut_streams()
    begin = time.monotonic()
    with pytest.raises(ClusterRefused, match="it is not permitted"):
        fake.wait(lambda: watch.pods() is None)
    assert time.monotonic() - begin >= 0.4


def test_lines_that_are_cut_tell_nothing(fake, watch):
    add_pod(fake)
    half = b'{"type":"MODIFIED","object":{"metadata":{"na'
    fake.fail(200, times=2, path="watch=True", body=half)
    watch.start()
    fake.wait(lambda: is_watching(fake, 3))
    add_pod(fake, "job-worker-1")
    fake.wait(lambda: len(names(watch)) == 2)


def test_watches_that_end_at_once_are_not_asked_for_without_a_pause(fake, watch):
    fake.fail(200, times=10**6, path="watch=True", body=b"")
    watch.start()
    time.sleep(0.5)
    assert 2 <= len(watches(fake)) <= 6


def watchers_since(others):
    return [thread for thread in set(threading.enumerate()) - others if thread.name == "pod-watch"]


def test_stop_ends_thread_and_connection_at_once(fake, cluster):
    others = set(threading.enumerate())
    for moment in (0, 0.01, 0.3):
        watch = PodWatch(cluster, PYTORCHJOB, "job")
        watch.start()
        time.sleep(moment)
        begin = time.monotonic()
        watch.stop()
        assert time.monotonic() - begin < 0.5
        assert not watchers_since(others)
    fake.wait(lambda: not open_streams(fake))
    watch.stop()


def test_a_watch_that_never_began_can_be_stopped(fake, cluster, monkeypatch):
    monkeypatch.setattr(pod_watch, "REFUSED_S", 1)
    fake.deny("list", "pods")
    watch = PodWatch(cluster, PYTORCHJOB, "job")
    with pytest.raises(ClusterRefused):
        watch.start()
    watch.stop()


def test_stop_does_not_wait_for_a_server_that_is_away(tmp_path, monkeypatch):
    others = set(threading.enumerate())
    with FakeCluster(tmp_path / "cluster") as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        watch = PodWatch(connect(), PYTORCHJOB, "job")
        watch.start()
        fake.wait(lambda: is_watching(fake))
    time.sleep(0.2)
    begin = time.monotonic()
    watch.stop()
    assert time.monotonic() - begin < 0.5
    assert not watchers_since(others)


def test_a_list_that_breaks_off_does_not_end_the_watch(fake, watch):
    pod = add_pod(fake)
    watch.start()
    fake.wait(lambda: is_watching(fake))
    fake.fail(503, times=1, path="watch=True")
    fake.fail(200, times=2, path="/pods.labelSelector=[^&]*$", body='{"items": [')
    fake.cut_streams()
    pod.end(4)
    fake.run_pod("foreign", lines=[])
    fake.compact()
    fake.wait(lambda: exit_code(watch) == 4)


def test_a_watch_that_hears_nothing_can_be_told_to_look(fake, watch, monkeypatch):
    pod = add_pod(fake)
    monkeypatch.setattr(watch, "_watch", lambda: watch._stream.ended.wait(20))
    watch.start()
    pod.end(3)
    assert exit_code(watch) is None
    watch.refresh()
    assert exit_code(watch) == 3
    fake.delete_pod("job-worker-0", grace=0)
    watch.refresh()
    assert watch.present() == [] and exit_code(watch) == 3
    fake.fail(503, path="/pods")
    watch.refresh()
