"""A stand-in for the Hugging Face hub: repositories in memory, served to the real client over HTTP."""

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str = "c" * 40
    branch: str = "main"
    gated: bool = False
    token: str | None = None
    """Token of an account that may read a gated repository."""
    license: str | None = None
    tells_sizes: bool = True
    """Whether it says how large its files are, as some mirrors do not."""
    break_after: int | None = None
    """Bytes of an answer after which the connection is cut, `breaks` times for each file."""
    breaks: int = 1
    broken: dict = field(default_factory=dict)
    """How often each file's connection was cut."""


class HubDouble:
    """Serves `repos`, by kind (`models`, `datasets`) and id; `requests` are the method and path of each call, and
    `ranges` what part of a file was asked for, by its path."""

    def __init__(self):
        self.repos = {}
        self.requests = []
        self.ranges = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def add(self, kind, name, files, **options):
        repo = self.repos[kind, name] = Repo({path: _bytes(content) for path, content in files.items()}, **options)
        return repo

    def downloads(self):
        return [path for method, path in self.requests if method == "GET" and "/resolve/" in path]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serve_hub(monkeypatch, cache):
    """A hub that huggingface_hub and datasets talk to, with a cache of its own."""
    import datasets
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    hub = HubDouble()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "datasets")
    huggingface_hub.HfFileSystem.clear_instance_cache()
    try:
        yield hub
    finally:
        hub.close()
        close_session()


def _bytes(content):
    return content if isinstance(content, bytes) else content.encode()


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_HEAD(self):
            self._answer()

        def do_GET(self):
            self._answer()

        def do_POST(self):
            self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer()

        def _answer(self):
            path = unquote(urlparse(self.path).path)
            hub.requests.append((self.command, path))
            api = re.fullmatch(
                r"/api/(models|datasets)/(.+?)(?:/(revision|tree|paths-info|auth-check)(?:/([^/]+))?(?:/(.*))?)?",
                path,
            )
            file = re.fullmatch(r"/(?:(datasets)/)?(.+?)/resolve/([^/]+)/(.+)", path)
            kind, name = (api[1], api[2]) if api else (file[1] or "models", file[2]) if file else (None, None)
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token and token not in {other.token for other in hub.repos.values()}:
                return self._refuse(401, None, "Invalid credentials in Authorization header")
            repo = hub.repos.get((kind, name))
            if repo is None:
                return self._refuse(404, "RepoNotFound")
            revision = (api[4] if api else file[3]) or repo.branch
            if revision not in (repo.commit, repo.branch):
                return self._refuse(404, "RevisionNotFound")
            may_read = not repo.gated or (token and token == repo.token)
            if not may_read and (file or api[3] == "auth-check"):
                return self._refuse(403 if token else 401, "GatedRepo")
            if file:
                return self._send_file(repo, file[4])
            if api[3] == "tree":
                return self._send_json(_entries(repo, list(repo.files)))
            if api[3] == "paths-info":
                return self._send_json(_entries(repo, _paths(self._body)))
            if api[3] == "auth-check":
                return self._send_json({})
            return self._send_json(
                {
                    "id": name,
                    "sha": repo.commit,
                    "gated": "manual" if repo.gated else False,
                    "private": False,
                    "cardData": {"license": repo.license} if repo.license else {},
                    "siblings": [
                        {"rfilename": path} | ({"size": len(data)} if repo.tells_sizes else {})
                        for path, data in repo.files.items()
                    ],
                }
            )

        def _send_file(self, repo, path):
            if path not in repo.files:
                return self._refuse(404, "EntryNotFound")
            data = repo.files[path]
            start = int(re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range", "bytes=0-"))[1])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{_digest(data)}"')
            self.send_header("X-Repo-Commit", repo.commit)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if self.command == "HEAD":
                return None
            hub.ranges.append((path, start))
            if repo.break_after is not None and repo.broken.get(path, 0) < repo.breaks:
                repo.broken[path] = repo.broken.get(path, 0) + 1
                self.wfile.write(data[start : start + repo.break_after])
                self.close_connection = True
                return None
            self.wfile.write(data[start:])
            return None

        def _send_json(self, content):
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _refuse(self, status, code, message=None):
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            if message:
                self.send_header("X-Error-Message", message)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


def _entries(repo, paths):
    return [
        {"type": "file", "path": path, "size": len(repo.files[path]), "oid": _digest(repo.files[path])}
        for path in paths
        if path in repo.files
    ]


def _paths(body):
    text = body.decode()
    return json.loads(text)["paths"] if text.startswith("{") else parse_qs(text)["paths"]


def _digest(data):
    return hashlib.sha1(data).hexdigest()
