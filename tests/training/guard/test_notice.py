import json
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from training.guard.memory import oom_kills
from training.guard.notice import NoticeWatch, aws_notice


class Metadata(BaseHTTPRequestHandler):
    """Instance metadata of EC2, version 2."""

    notice = None

    def do_PUT(self):
        is_right = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200 if is_right else 400, b"a-token")

    def do_GET(self):
        if self.headers["X-aws-ec2-metadata-token"] != "a-token":
            self.answer(401, b"")
        elif self.path != "/latest/meta-data/spot/instance-action" or self.notice is None:
            self.answer(404, b"")
        else:
            self.answer(200, self.notice)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def metadata(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setattr(Metadata, "notice", None)
    yield Metadata
    server.shutdown()


def test_a_notice_of_ec2_is_read(metadata, monkeypatch):
    assert aws_notice() is None
    metadata.notice = json.dumps({"action": "terminate", "time": "2026-09-18T08:22:00Z"}).encode()
    assert aws_notice() == "this machine is to terminate at 2026-09-18T08:22:00Z"
    for wrong in (b"", b"{}", b"[]", b"\xff"):
        metadata.notice = wrong
        assert aws_notice() is None
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    assert aws_notice() is None, "not a machine of EC2"


def test_a_watch_tells_of_a_notice_once(metadata):
    told = []
    watch = NoticeWatch(aws_notice, told.append, every_s=0.02)
    watch.start()
    time.sleep(0.2)
    assert told == []
    metadata.notice = b'{"action": "stop", "time": "soon"}'
    deadline = time.monotonic() + 10
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert told == ["this machine is to stop at soon"]
    watch.stop()


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/kubepods/pod-1\n", "kubepods/pod-1/memory.events"),
        ("0::/kubepods/pod-1\n", "memory.events"),
        ("5:cpu,cpuacct:/x\n4:memory:/kubepods/pod-1\n", "memory/kubepods/pod-1/memory.oom_control"),
        ("4:memory:/kubepods/pod-1\n0::/\n", "memory/memory.oom_control"),
    ],
)
def test_kills_of_the_kernel_are_counted_in_either_version_of_cgroups(tmp_path, membership, file):
    (tmp_path / "cgroup").write_text(membership)
    root = tmp_path / "sys"
    assert oom_kills(tmp_path / "cgroup", root) == 0
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("oom 3\noom_kill 2\n")
    assert oom_kills(tmp_path / "cgroup", root) == 2
    (root / file).write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert oom_kills(tmp_path / "cgroup", root) == 0, "an old kernel does not count them"
    assert oom_kills(tmp_path / "missing", root) == 0
