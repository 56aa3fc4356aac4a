"""A way to a server that can be cut."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class CutProxy:
    """Hands bytes on to a server, and cuts connections after so many bytes of answers.

    Attributes:
        url: Where it listens.
        cut_after: Bytes after which a connection is cut; None never cuts.
        cuts: How many connections it may still cut.
        num_cut: How many it has cut.
        num_bytes: Bytes of answers that it has handed on.
        spare: Bytes of answers before which none is cut.
    """

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_after: int | None = None
        self.cuts = 0
        self.num_cut = 0
        self.num_bytes = 0
        self.spare = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._hand_on, args=(source, sink, is_answer), daemon=True).start()

    def _hand_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        num_bytes = 0
        with contextlib.suppress(OSError):  # the other direction was cut
            while data := source.recv(2**14):
                num_bytes += len(data)
                self.num_bytes += is_answer * len(data)
                may_cut = is_answer and self.cuts > 0 and self.num_bytes > self.spare
                if may_cut and self.cut_after is not None and num_bytes > self.cut_after:
                    self.cuts -= 1
                    self.num_cut += 1
                    break
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cut_proxy(target: str) -> Iterator[CutProxy]:
    """A proxy before a server, by the server's URL."""
    proxy = CutProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
