"""A container: a process of this machine, and the log of what it prints."""

import os
import re
import select
import subprocess
import threading
import time

from tests.doubles.cluster import processes

PIECE = 1 << 16


class StartError(Exception):
    """The container's command cannot be started."""


class Container:
    """Runs a command until it ends; `run` belongs to one thread, the rest may be called from others.

    Args:
        identity: Marks its processes, so that none outlives it.
    """

    def __init__(self, command, environment, folder, log, identity):
        self.log = log
        self._identity = identity
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._deadline = None
        self._partial = b""
        self._killed = False
        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment, processes.CONTAINER: identity},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._wake)
            raise StartError(f'exec: "{command[0]}": {error.strerror.lower()}: unknown') from error

    def stop(self, grace):
        """Ask the main process to end; kill everything when the grace is over."""
        deadline = time.monotonic() + grace
        if self._deadline is None:
            processes.ask_to_stop(self._process.pid)
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
        self._wake_up()

    def kill(self):
        self._killed = True
        self._wake_up()

    def run(self):
        """Collect the output until the main process ends, and return its exit code as a shell would."""
        output, end = self._process.stdout.fileno(), os.pidfd_open(self._process.pid)
        poll = select.poll()
        for descriptor in (output, end, self._wake):
            poll.register(descriptor, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll(self._patience())}
                if output in ready and not self._read(output):
                    poll.unregister(output)
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                if self._killed or (self._deadline is not None and time.monotonic() >= self._deadline):
                    processes.kill_marked(processes.CONTAINER, self._identity)
                if end in ready:
                    break
        finally:
            with self._lock:
                os.close(self._wake)
                self._wake = None
            os.close(end)
        code = self._process.wait()
        # With process 1 its whole container ends.
        processes.kill_marked(processes.CONTAINER, self._identity)
        while self._read(output):
            pass
        if self._partial:
            self.log.append(self._partial)
        self._process.stdout.close()
        return 128 - code if code < 0 else code

    def _patience(self):
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic()) * 1000 + 1

    def _read(self, descriptor):
        data = os.read(descriptor, PIECE)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self.log.append(line + b"\n")
        return data

    def _wake_up(self):
        with self._lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)


def expand(text, environment):
    """Replace $(NAME) as the kubelet does; $$(NAME) stays $(NAME), and so does a name that is not there."""

    def value(match):
        if match[0].startswith("$$"):
            return match[0][1:]
        return environment.get(match[1], match[0])

    return re.sub(r"\$?\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)", value, text)
