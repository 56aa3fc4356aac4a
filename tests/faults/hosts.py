"""Hosts on one machine: each a network namespace on a common switch, with control groups of its own.

A test without privileges makes plain hosts instead, which are names for processes on loopback. What other
processes need to know of the hosts stands in `<folder>/hosts.json`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.faults.cgroups import Cgroup
from tests.faults.marks import own_mark, remove_hosts, sweep


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: As the run knows it.
        address: Where its nodes meet.
        interface: Of that address.
        folder: Of all the hosts.
        mark: Of the suite.
        has_namespace: Whether it has a network of its own.
    """

    name: str
    address: str
    interface: str
    folder: str
    mark: str
    has_namespace: bool

    @property
    def namespace(self) -> str:
        return f"{self.mark}-{self.name}"

    @property
    def kernel_log(self) -> str:
        """What its nodes take for the log of the kernel."""
        return str(Path(self.folder) / f"{self.name}.kmsg")

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command line that runs in the host's network."""
        return [*(["nsenter", f"--net=/run/netns/{self.namespace}"] if self.has_namespace else []), *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(command), check=True, capture_output=True, text=True)

    @property
    def _down(self) -> Path:
        return Path(self.folder) / f"{self.name}.down"

    @property
    def is_up(self) -> bool:
        """Whether nodes can be started on it."""
        return not self._down.exists()

    def processes(self) -> list[psutil.Process]:
        """The host's node with all below it, known by what its environment says."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # A zombie has no environment.
                environment = process.environ()
                if (environment.get("FAULTS_MARK"), environment.get("SHARDLINE_HOST")) == (self.mark, self.name):
                    found.append(process)
        return found

    def lose(self) -> None:
        """The machine is gone at once, and nobody is told."""
        self._down.touch()
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to all of the host's processes; SIGSTOP: the machine hangs."""
        if number == signal.SIGSTOP:
            self._down.touch()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def cut_off(self) -> None:
        """Drop every packet from and to the host."""
        self._down.touch()
        for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self.run("iptables", "-I", chain, direction, self.interface, "-j", "DROP")

    def cgroup(self, part: str = "") -> Cgroup:
        """The host's control group, or one below it."""
        return Cgroup(f"{self.mark}/{self.name}{f'/{part}' if part else ''}")


class Hosts:
    """Hosts, from their making to their end.

    Args:
        folder: For what is known of them.
        names: One a host; the last ones are spares as long as the others are up.
        plain: Make names for processes on loopback, which takes no privileges.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, plain: bool = False) -> None:
        sweep()
        self.folder = folder
        self.mark = own_mark()
        self._plain = plain
        self._hosts = [
            Host(
                name,
                "127.0.0.1" if plain else f"10.99.0.{number + 1}",
                "lo" if plain else "eth0",
                str(folder),
                self.mark,
                not plain,
            )
            for number, name in enumerate(names)
        ]

    def __enter__(self) -> "Hosts":
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._plain:
            try:
                _make_networks(self._hosts, f"{self.mark}-switch")
            except BaseException:
                remove_hosts(self.mark)
                raise
        for host in self._hosts:
            Path(host.kernel_log).touch()
        (self.folder / "hosts.json").write_text(json.dumps([asdict(host) for host in self._hosts]))
        return self

    def __exit__(self, *error: object) -> None:
        for host in self._hosts:
            host.signal(signal.SIGKILL)
        remove_hosts(self.mark)

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self._hosts if host.name == name)

    def __iter__(self):
        return iter(self._hosts)


def read_hosts(folder: Path) -> list[Host]:
    """The hosts that another process has made."""
    return [Host(**entry) for entry in json.loads((folder / "hosts.json").read_text())]


def _make_networks(hosts: Sequence[Host], switch: str) -> None:
    """A bridge in a namespace of its own, so that nothing of it shows outside, and a veth pair to each host."""
    _ip(f"netns add {switch}")
    _ip(f"-n {switch} link add switch type bridge")
    _ip(f"-n {switch} link set switch up")
    for host in hosts:
        _ip(f"netns add {host.namespace}")
        _ip(f"-n {host.namespace} link add {host.interface} type veth peer name {host.name} netns {switch}")
        _ip(f"-n {switch} link set dev {host.name} master switch up")
        _ip(f"-n {host.namespace} address add {host.address}/24 dev {host.interface}")
        _ip(f"-n {host.namespace} link set {host.interface} up")
        _ip(f"-n {host.namespace} link set lo up")


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {arguments}: {done.stderr}"


def agent(host: Host, state: Path, env: dict[str, str], log: Path, command: Sequence[str]) -> None:
    """Start a command on a host under an agent, which outlives the caller as a kubelet does.

    Args:
        host: Where.
        state: Where the agent writes the command's pid, and its exit code.
        env: Of the command.
        log: Its output.
        command: What to run.
    """
    script = Path(__file__).with_name("agent.py")
    suite = host.mark.split("-")[1]
    with log.open("ab") as output:
        subprocess.Popen(
            host.inside([sys.executable, "-S", str(script), str(state), suite, *command]),
            env={
                **env,
                "FAULTS_MARK": host.mark,
                "SHARDLINE_HOST": host.name,
                "SHARDLINE_KERNEL_LOG": host.kernel_log,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_mover(host),
        )


def _mover(host: Host):
    if not host.has_namespace or os.geteuid() != 0:
        return None
    group = host.cgroup()
    return lambda: group.add(os.getpid())
