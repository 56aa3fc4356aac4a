"""HTTP around the API: connections that live long, chunked streams, and accidents on request."""

import contextlib
import json
import select
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    time: float
    method: str
    path: str
    body: object
    raw: bytes = field(repr=False, default=b"")
    headers: object = field(repr=False, default=None)

    @property
    def url(self):
        return urlsplit(self.path)

    @property
    def query(self):
        return dict(parse_qsl(self.url.query, keep_blank_values=True))


@dataclass
class Response:
    status: int
    body: object
    headers: dict = field(default_factory=dict)


@dataclass
class Stream:
    """An answer in pieces; an empty piece only asks whether the client is still there."""

    pieces: object
    content_type: str
    kind: str


class Hangup(Exception):
    """The connection ends here, without an answer."""


class HttpServer:
    """Serves `answer(request)`, which gives a Response or a Stream."""

    def __init__(self, answer, port=0):
        self.answer = answer
        self.log_cut = None
        self._open = set()
        self._connections = set()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def cut(self, kind=None):
        """End open streams as a broken network does, without the last chunk."""
        with self._lock:
            chosen = [connection for connection in self._open if kind in (None, connection.kind)]
        for connection in chosen:
            connection.cut()
        return len(chosen)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def connected(self, connection):
        with self._lock:
            self._connections.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._connections.discard(connection)

    def send(self, stream, wire):
        """Write the pieces of a stream until it ends, is cut, or nobody listens."""
        connection = _Connection(stream.kind, wire)
        with self._lock:
            self._open.add(connection)
        try:
            for piece in stream.pieces:
                if connection.gone():
                    raise Hangup
                if piece:
                    self._send_piece(connection, piece)
            wire.sendall(b"0\r\n\r\n")
        except OSError:
            raise Hangup from None
        finally:
            stream.pieces.close()
            with self._lock:
                self._open.discard(connection)

    def _send_piece(self, connection, piece):
        cut = self.log_cut if connection.kind == "log" else None
        if cut is not None and connection.sent + len(piece) > cut:
            self.log_cut = None
            connection.send(piece[: cut - connection.sent])
            connection.cut()
            raise Hangup
        connection.send(piece)


class _Connection:
    def __init__(self, kind, wire):
        self.kind = kind
        self.sent = 0
        self._wire = wire
        self._cut = False

    def send(self, piece):
        if piece:
            self._wire.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.sent += len(piece)

    def cut(self):
        self._cut = True
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def gone(self):
        if self._cut:
            return True
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self._wire.recv(1, socket.MSG_PEEK)
        except OSError:
            return True  # the client hung up in the middle


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        """A client that is gone is no news."""


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self):
            with server.connected(self.connection):
                super().handle()

        def serve(self):
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(time.time(), self.command, self.path, _parsed(raw), raw, self.headers)
            try:
                self._answer(server.answer(request))
            except Hangup:
                self._hang_up()
            except Exception:
                traceback.print_exc(file=sys.stderr)
                self._send(Response(500, f"the double of the cluster failed:\n{traceback.format_exc()}"))

        def _answer(self, answer):
            if isinstance(answer, Response):
                self._send(answer)
                return
            self.wfile.write(
                self._head(200, {"Content-Type": answer.content_type, "Transfer-Encoding": "chunked"})
            )
            server.send(answer, self.connection)

        def _send(self, response):
            body, kind = response.body, "application/json"
            if isinstance(body, str):
                body, kind = body.encode(), "text/plain; charset=utf-8"
            elif not isinstance(body, bytes):
                body = _encoded(body)
            headers = {"Content-Type": kind, **response.headers, "Content-Length": str(len(body))}
            if response.status == 204:
                headers, body = {}, b""
            self.wfile.write(self._head(response.status, headers) + body)

        def _head(self, status, headers):
            reason = self.responses.get(status, ("",))[0]
            lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
            return ("\r\n".join([*lines, "", ""])).encode("latin-1", "replace")

        def _hang_up(self):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format, *args):
            pass

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    return Handler


def _encoded(body):
    """JSON as Go writes it, which escapes what HTML would read."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode() + b"\n"


def _parsed(raw):
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return None
