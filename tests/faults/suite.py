"""What the rows of the matrix share: where runs live, the quiet runs, and how a trial is begun."""

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.hosts import Hosts
from tests.faults.judge import Outcome
from tests.faults.torchrun import TorchrunJob
from tests.faults.trial import Trial
from tests.faults.world import EVERY, Result, make_run, result_of
from training.run_folder import RunFolder

FAULT_STEP = EVERY + 2
"""When most faults are injected: a checkpoint is there, and two steps are to lose."""


@dataclasses.dataclass
class Suite:
    """One run of the matrix.

    Attributes:
        folder: For all that it makes.
        plain: Whether hosts are names for processes on loopback, which takes no privileges.
        has_torchrun: Whether torchrun is put to the same faults.
        tell: Called with what goes on now.
    """

    folder: Path
    plain: bool = False
    has_torchrun: bool = True
    tell: Callable[[str], None] = lambda what: None
    _quiet: dict[tuple[int, int], tuple[Result, RunFolder]] = dataclasses.field(default_factory=dict)
    _number: int = 0

    @contextlib.contextmanager
    def hosts(self, names: Sequence[str]) -> Iterator[Hosts]:
        """Hosts of their own for each trial."""
        self._number += 1
        with Hosts(self.folder / f"hosts-{self._number}", names, plain=self.plain) as hosts:
            yield hosts

    @contextlib.contextmanager
    def trial(
        self,
        name: str,
        *,
        nodes: int = 1,
        ranks: int = 2,
        hosts: Sequence[str] = ("a", "b", "c"),
        variables: dict[str, str] | None = None,
        prepare: Callable[[RunFolder], object] = lambda folder: None,
        **sections: dict[str, Any],
    ) -> Iterator[Trial]:
        """A run that has begun; ended with whatever is left of it.

        Args:
            name: Of the run.
            nodes: Hosts that it asks for.
            ranks: On each.
            hosts: Those that there are.
            variables: More environment of every node.
            prepare: Called with the run before it begins.
            sections: Of its configuration, where they differ from `make_run`'s.
        """
        self.tell(f"the run '{name}'")
        folder = make_run(self.folder / "store", name, nodes=nodes, ranks=ranks, **sections)
        prepare(folder)
        with self.hosts(hosts) as made, Trial(folder, made, **(variables or {})) as trial:
            yield trial

    def quiet(self, nodes: int = 1, ranks: int = 2) -> Result:
        """What comes of a run without a fault; made once for each size."""
        return self._quiet_run(nodes, ranks)[0]

    def cold_s(self) -> dict[str, float]:
        """C of each size of run that was made: from its start to its first step, in seconds."""
        return {f"{n} × {r} ranks": result.cold_s for (n, r), (result, _) in sorted(self._quiet.items())}

    def copy_of_quiet(self, name: str) -> RunFolder:
        """A run that has made all steps and checkpoints, but whose model was lost."""
        _, source = self._quiet_run(1, 2)
        path = source.path.with_name(name)
        shutil.copytree(source.path, path)
        shutil.rmtree(path / "model")
        return RunFolder.at(path)

    def _quiet_run(self, nodes: int, ranks: int) -> tuple[Result, RunFolder]:
        if (nodes, ranks) not in self._quiet:
            with self.trial(f"quiet-{nodes}x{ranks}", nodes=nodes, ranks=ranks) as trial:
                code = trial.end()
            assert code == 0, trial.words()
            alerts = [event.text for event in trial.events("alert")]
            assert not alerts and not trial.events("incident"), f"false alarms: {alerts}"
            self._quiet[nodes, ranks] = result_of(trial.folder), trial.folder
        return self._quiet[nodes, ranks]

    def torchrun(
        self,
        outcome: Outcome,
        fault: Callable[[TorchrunJob, Hosts], object],
        *,
        nodes: int = 1,
        ranks: int = 2,
        nnodes: str = "1",
        hosts: Sequence[str] = ("a", "b"),
        group_timeout_s: float = 1800,
        within_s: float = 120,
    ) -> None:
        """Put torchrun to the same fault, and note how long it takes.

        Args:
            outcome: Of ours.
            fault: Injects it.
            nodes: Hosts that torchrun is started on; more than `nnodes` allows are spares.
            ranks: On each.
            nnodes: As torchrun takes it.
            hosts: Those that there are.
            group_timeout_s: Of the process group.
            within_s: How long a reaction is waited for.
        """
        if not self.has_torchrun:
            return
        self.tell(f"torchrun under the same fault: at most {within_s:.0f} s after it")
        run = make_run(self.folder / "store", f"torchrun-{self._number}", nodes=1, ranks=ranks)
        with self.hosts(hosts) as made:
            job = TorchrunJob(
                self.folder / f"torchrun-{self._number}",
                run,
                list(made)[:nodes],
                ranks=ranks,
                nnodes=nnodes,
                group_timeout_s=group_timeout_s,
            )
            seconds = job.recovery_s(lambda job: fault(job, made), after_step=FAULT_STEP, within_s=within_s)
        outcome.torchrun_s = seconds if seconds is not None else f"no reaction in {within_s:.0f} s"


def inject(trial: Trial, action: Callable[[], object], *, step: int = FAULT_STEP) -> float:
    """Act once a checkpoint is there and a step was made after it; the time at which it was done."""
    trial.wait_for_checkpoint(step - step % EVERY or EVERY)
    trial.wait_for_step(step)
    at = time.time()
    action()
    return at
