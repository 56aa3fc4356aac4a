"""Jobs whose nodes do what a test says, in this process: what is seen of them is files, events and heartbeats."""

import json
import time
from dataclasses import dataclass, field

from components.cluster.job_state import Phase
from components.jobs.attempts import close_record, read_record
from components.jobs.job import PodSettings, TrainingJob, job_name
from components.jobs.launchers import Ending
from training.events import Alert, EventWriter, RanksEnded, TrainStep
from training.guard.place import Place, write_place
from training.orders import Orders
from training.store import write_atomically


@dataclass
class Scene:
    """Machines, and what happens in each attempt, in turn.

    Attributes:
        script: Called with the launcher when an attempt begins.
        hosts: The machines.
        made: The jobs that were made.
        ran: The attempts that nodes have begun, with their job and their machines.
        stopped: Names of the jobs that were stopped.
        had_to_leave: Whether their nodes were told before to end their ranks at once.
    """

    folder: object
    script: list
    hosts: list = field(default_factory=lambda: ["a", "b", "c"])
    num_nodes: int = 2
    unfit: dict = field(default_factory=dict)
    made: list = field(default_factory=list)
    ran: list = field(default_factory=list)
    stopped: list = field(default_factory=list)
    had_to_leave: list = field(default_factory=list)
    jobs: dict = field(default_factory=dict)


class ScriptedJobs:
    """Satisfies `components.jobs.jobs.Jobs`; jobs outlive who asked for them."""

    def __init__(self, scene):
        self.scene = scene

    def next_attempt(self):
        folder = self.scene.folder
        last = max(folder.attempts(), default=0)
        record = read_record(folder, last) if last else {}
        if record and "ended" not in record:
            if record["name"] in self.scene.jobs:
                return last
            close_record(folder, record, "lost")
        return last + 1

    def describe(self, number):
        folder, nodes = self.scene.folder, self.scene.num_nodes
        name = job_name(folder.run, number, nodes, folder.purpose)
        return TrainingJob(name, folder.job_path, number, nodes, 1, pods=PodSettings("none"))

    def launcher(self):
        return ScriptedLauncher(self.scene)

    def where(self):
        return {}

    def num_hosts(self):
        return None

    def unfit(self, hosts):
        return {host: why for host, why in self.scene.unfit.items() if host in hosts}


class ScriptedLauncher:
    """Satisfies `components.jobs.launchers.Launcher`; the methods below are for scripts."""

    name = "scripted"
    forwards_logs = False
    poll_s = 0.005

    def __init__(self, scene):
        self.scene = scene
        self.folder = scene.folder

    def submit(self, job):
        self.job = job
        if job.name not in self.scene.jobs:
            self.scene.made.append(job)
            state = {"phase": Phase.STARTING, "ran": 0, "beats": 0, "dead": set(), "hosts": [], "later": None}
            self.scene.jobs[job.name] = state
        self.state = self.scene.jobs[job.name]
        return {}

    def poll(self):
        state = self.state
        if not state["hosts"]:
            free = [host for host in self.scene.hosts if host not in self.job.pods.excluded_hosts]
            if len(free) < self.job.num_nodes:
                return Phase.STARTING
            state["hosts"], state["phase"] = free[: self.job.num_nodes], Phase.RUNNING
        ordered = Orders(self.folder.job_path).attempt()
        if state["phase"] is Phase.RUNNING and ordered > state["ran"]:
            state["ran"] = self.number = ordered
            self.scene.ran.append((ordered, self.job.name, *state["hosts"]))
            self.scene.script.pop(0)(self)
        state["beats"] += 1
        if state["later"] and time.monotonic() > state["later"][0]:
            (_, act), state["later"] = state["later"], None
            act()
        for node in set(range(self.job.num_nodes)) - state["dead"]:
            path = self.folder.launcher_heartbeat.with_name(f"node-{node}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(state["beats"]))
        return state["phase"]

    def waiting(self):
        return ["no machine is free"]

    def lacks_machines(self):
        return not self.state["hosts"]

    def report_progress(self, progress):
        pass

    def ending(self):
        return self.state["ending"]

    def stop(self):
        self.scene.stopped.append(self.job.name)
        self.scene.had_to_leave.append(Orders(self.folder.job_path).says_leave())
        self.scene.jobs.pop(self.job.name, None)
        self.state["phase"] = Phase.GONE

    # What scripts do

    def begin(self):
        """All nodes tell where they are."""
        for node, host in enumerate(self.state["hosts"]):
            write_place(self.folder.attempt(self.number), Place(node, host, "", 0, 0, (node,)))

    def write(self, source, event):
        EventWriter(self.folder.events, source, self.number).write(event)

    def step(self, step):
        numbers = dict.fromkeys(("loss", "grad_norm", "learning_rate", "seconds", "memory_gib"), 1.0)
        event = TrainStep(step=step, num_steps=99, num_tokens=1, num_supervised=1, **numbers)
        self.write("rank-0", event)

    def save(self, step):
        folder = self.folder.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")

    def end_ranks(self, node=0, what=None, exit_code=1, **more):
        host = self.state["hosts"][node]
        event = RanksEnded(node=node, host=host, what=what, rank=node, exit_code=exit_code, **more)
        self.write(f"{self.folder.node_prefix}{node}", event)
        if exit_code < 0:
            self.error(f"node-{node}", rank=node, exit_code=exit_code)

    def alert(self, what, host, source=0, **more):
        self.write(f"node-{source}", Alert(what=what, host=host, text=f"{what} of {host}", **more))

    def error(self, name, **record):
        path = self.folder.attempt(self.number) / "errors" / f"{name}.json"
        write_atomically(path, json.dumps({"time": 1.0, **record}))

    def later(self, seconds, act):
        """Do something more after a while."""
        self.state["later"] = (time.monotonic() + seconds, act)

    def end_job(self, phase=Phase.FAILED, **ending):
        self.state["phase"], self.state["ending"] = phase, Ending(**ending)
        del self.scene.jobs[self.job.name]

    def finish(self):
        """The work is done."""
        (self.folder.path / "done").touch()
        self.end_job(Phase.SUCCEEDED, exit_code=0)


def killed(step=None, saved=None, node=0, silent=False):
    """A rank is killed after a step, and after a checkpoint was saved; the other node tells of it, or does not."""

    def act(launcher):
        launcher.begin()
        if step:
            launcher.step(step)
        if saved:
            launcher.save(saved)
        launcher.end_ranks(node, exit_code=-9)
        if not silent and launcher.job.num_nodes > 1:
            launcher.end_ranks(1 - node)

    return act


def raised(message="OSError: Stale file handle", **record):
    """A rank raises an error."""

    def act(launcher):
        launcher.begin()
        launcher.error("rank-1", rank=1, exit_code=1, message=message, traceback=message, **record)
        launcher.end_ranks(1)
        launcher.end_ranks(0)

    return act


def done(launcher):
    """The ranks come to their end."""
    launcher.begin()
    launcher.finish()
