"""Attempt after attempt, until a job's work is done or it must stop."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from components.jobs.attempts import close_record, read_record, save_verdict, write_record
from components.jobs.exclusions import exclude, excluded, exclusions, lift
from components.jobs.follow import Watched, follow
from components.jobs.history import Past, history_of
from components.jobs.incident import judge
from components.jobs.jobs import Jobs
from components.jobs.launchers import Ending
from components.jobs.live_job import LiveJob, new_job
from components.jobs.policy import BREAKER_S, Decision, Situation, blamed, decide, why_kept
from components.jobs.report import write_report
from components.jobs.seen import Seen
from components.jobs.sizes import smaller
from components.jobs.work import Work
from components.step import Step, StepFailed
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOP, UserError
from training.events import Decided, Incident
from training.orders import Orders
from training.run_folder import RunFolder
from training.skipped import skip_step

_LONGEST_WORDS = 200
"""Characters of an incident's first words that are worth a line of the log."""


class Recovery:
    """Makes attempts.

    Args:
        step: The step at work.
        work: What for.
        jobs: Where jobs are made.
        pipeline_job: Name of the pipeline job, whose earlier starts count.
    """

    def __init__(self, step: Step, work: Work, jobs: Jobs, pipeline_job: str) -> None:
        self._step = step
        self._work = work
        self._jobs = jobs
        self._pipeline_job = pipeline_job
        self._folder = work.folder
        self._limits = work.config.resilience
        self._since = max(work.folder.attempts(), default=0) + 1
        self._live: LiveJob | None = None
        self._is_ended = False
        self._is_broken = False
        self._num_nodes: int | None = None
        self._on_nodes = 0
        self._needed: dict[str, float] = {}

    def run(self) -> None:
        """Come back when the work is done.

        Raises:
            UserError: The run's configuration or data is wrong, in a rank's own words.
            StepFailed: There is to be no further attempt.
        """
        try:
            self._decide_what_was_left()
            while not self._attempt():
                pass
        except BaseException:
            self._abandon()
            raise

    def _attempt(self) -> bool:
        """Make one attempt; whether the work is done."""
        self._is_ended = self._is_broken = False
        live = self._begin()
        seen = follow(self._step, live.launcher, self._limits, self._watched(live))
        live.places = seen.places
        if seen.overdue is not None and seen.overdue.what == "no_replacement":
            self._make_do(live, seen.overdue.sentence)
            return False
        ending = self._ending(live, seen)
        self._is_ended = bool(seen.has_ended or seen.overdue or seen.fatal or seen.slow)
        self._is_broken = bool(seen.lost) or any(e.exit_code != EXIT_INTERRUPTED for e in seen.told.values())
        # However the job ended: another attempt would begin from nothing where checkpoints are not kept.
        if self._work.is_done():
            live.record = close_record(self._folder, live.record, "succeeded", ending)
            self._end_job()
            return True
        if seen.has_ended and not live.has_begun():
            self._step.note("the nodes had left before they were told to go on: their job is made anew")
            close_record(self._folder, live.record, "not_begun", ending)
            self._end_job()
            return False
        self._judge(live, seen, ending)
        return False

    def _begin(self) -> LiveJob:
        live, more = self._live, {"pipeline_job": self._pipeline_job, "saved_from": self._saved_step()}
        if live is not None:
            live.go_on(more)
            self._step.note(f"attempt {live.number}: goes on in place")
            return live
        live = new_job(
            self._folder, self._jobs, num_nodes=self._num_nodes, excluded=excluded(self._folder), more=more
        )
        self._since = min(self._since, live.number)
        if "in_place" in live.record:
            self._on_nodes = int(live.record.get("saved_from", 0))  # as a launcher before knew
        job = live.job
        ranks = job.num_nodes * job.procs_per_node
        out = f", without {', '.join(job.pods.excluded_hosts)}" if job.pods and job.pods.excluded_hosts else ""
        self._step.note(
            f"attempt {live.number}: {ranks} ranks on {job.num_nodes} node(s), launcher {live.launcher.name}{out}"
        )
        self._live = live
        live.submit()
        return live

    def _watched(self, live: LiveJob) -> Watched:
        def remember(began: Mapping[str, float]) -> None:
            live.record = {**live.record, "phases": dict(began)}
            write_record(self._folder, live.record)

        def kept(hosts: Mapping[str, str]) -> str:
            return why_kept(hosts, self._limits, self._situation(live.record, hosts, is_alive=True))

        has_trouble = self._history(live.number) or excluded(self._folder)
        can_make_do = has_trouble and (self._smaller(live) or self._doubtful)
        return Watched(
            self._folder,
            live.number,
            live.job.num_nodes,
            live.places,
            live.record.get("phases", {}),
            self._limits.replacement_timeout_s if can_make_do else None,
            kept,
            remember,
        )

    def _ending(self, live: LiveJob, seen: Seen) -> Ending:
        launcher = live.launcher
        if seen.overdue is not None:
            self._step.note(seen.overdue.sentence)
            why = "\n".join([seen.overdue.sentence, *launcher.waiting()])
            launcher.stop()
            return Ending(what=seen.overdue.what, evidence=why)
        if seen.has_ended:
            return launcher.ending()
        if seen.fatal or seen.slow:
            launcher.stop()  # so that its ranks save
        return Ending()

    def _judge(self, live: LiveJob, seen: Seen, ending: Ending) -> None:
        """Judge an attempt that failed, and decide what comes next."""
        incident, suspects = judge(self._folder, live.number, ending, seen)
        if incident.what not in ("invalid", "interrupted"):
            suspects = {**self._jobs.unfit({place.host for place in live.places.values()}), **suspects}
        is_alive = not (self._is_ended or seen.lost)
        # What nodes have on their own disks is of use to an attempt in the same place alone.
        self._on_nodes = max(self._on_nodes, seen.on_nodes) if is_alive and not suspects else 0
        past = Past(
            live.number,
            incident.what,
            incident.fingerprint,
            blamed(incident),
            saved_from=int(live.record.get("saved_from", 0)),
            saved=self._saved_step(),
        )
        kept: dict[str, Any] = {"past": past.as_record(), "incident": incident.model_dump(), "suspects": suspects}
        kept |= {"host": incident.host, "step": incident.step, "fingerprint": incident.fingerprint}
        live.record = close_record(self._folder, live.record, incident.what, ending, **kept)
        self._decide(live.record, incident, past, self._situation(live.record, suspects, is_alive=is_alive))

    def _decide(self, record: dict[str, Any], incident: Incident, past: Past, situation: Situation) -> None:
        """Decide about an attempt that failed, tell it, and prepare the next.

        Raises:
            UserError: There is none, because of the configuration or the data.
            StepFailed: There is none.
        """
        decision = decide(incident, self._history(past.number), self._limits, situation)
        exclude(
            self._folder,
            decision.exclude,
            self._limits.exclude_for_s,
            may_be_lifted=incident.what != "node_suspect",
        )
        if decision.skip is not None:
            skip_step(self._folder, decision.skip)
        self._tell(incident, decision)
        code = EXIT_STOP if decision.is_final else EXIT_FAILED
        sentence = _failure(self._folder, incident, decision)
        if not decision.retry:
            save_verdict(self._folder, self._pipeline_job, incident, sentence, code)
        past = replace(past, counts=decision.counts, skipped=decision.skip is not None)
        if decision.retry and decision.action != "restart_in_place":
            past = replace(
                past, saved=self._work.saved_step()
            )  # what nodes have on their own disks goes with them
        decided = {"past": past.as_record(), "decision": decision.action, "reason": decision.reason}
        write_record(self._folder, {**record, **decided})
        if not decision.retry:
            raise UserError(sentence) if incident.what == "invalid" else StepFailed(sentence, code)
        self._num_nodes = decision.num_nodes
        if decision.action != "restart_in_place":
            self._end_job()
        if decision.pause_s:
            self._step.note(f"the next attempt begins in {decision.pause_s:.0f} s, to give the disk time")
            time.sleep(decision.pause_s)

    def _decide_what_was_left(self) -> None:
        """Decide about an attempt that failed right before the launcher that followed it was killed."""
        record = read_record(self._folder, self._since - 1)
        is_mine = self._pipeline_job and record.get("pipeline_job") == self._pipeline_job
        if not is_mine or "incident" not in record or "decision" in record:
            return
        incident, past = Incident(**record["incident"]), Past(**record["past"])
        self._decide(record, incident, past, self._situation(record, record["suspects"], is_alive=False))

    def _make_do(self, live: LiveJob, sentence: str) -> None:
        """Go on without the machines that were waited for."""
        self._step.note(sentence)
        fewer = self._smaller(live)
        if fewer is not None:
            decision = Decision("shrink", f"{sentence}: it goes on with {fewer} node(s)", num_nodes=fewer)
        else:
            doubtful = self._doubtful
            names = ", ".join(sorted(doubtful))
            decision = Decision(
                "restart_elsewhere", f"{sentence}: {names} is used again", num_nodes=live.usual_nodes
            )
            lift(self._folder, doubtful)
            self._needed |= dict.fromkeys(doubtful, time.monotonic())
        if self._folder.purpose == "training":
            self._step.write(_decided(live.number, decision))
        self._step.note(decision.reason)
        self._num_nodes = decision.num_nodes
        self._end_job()
        close_record(self._folder, live.record, "no_replacement", decision=decision.action, reason=decision.reason)

    def _tell(self, incident: Incident, decision: Decision) -> None:
        if self._folder.purpose == "training":
            # Who reads a run's events takes incidents for those of its training.
            self._step.write(incident)
            self._step.write(_decided(incident.attempt, decision))
        self._step.note(f"attempt {incident.attempt} ended: {_in_short(incident)}")
        self._step.note(f"{decision.action.replace('_', ' ')}: {decision.reason}")
        write_report(self._folder, incident, decision)

    def _history(self, before: int) -> tuple[Past, ...]:
        past = history_of(self._folder, self._pipeline_job, self._since)
        return tuple(each for each in past if each.number < before)

    def _situation(self, record: Mapping[str, Any], suspects: Mapping[str, str], *, is_alive: bool) -> Situation:
        now = time.time()
        return Situation(
            saved_from=int(record.get("saved_from", 0)),
            saved=self._saved_step(),
            num_nodes=record["num_nodes"],
            usual_nodes=record.get("usual_nodes", record["num_nodes"]),
            is_alive=is_alive,
            suspects=suspects,
            num_hosts=self._jobs.num_hosts(),
            excluded=frozenset(e.host for e in exclusions(self._folder, now) if now - e.since <= BREAKER_S),
            # After that, there may be a replacement.
            needed=frozenset(
                host
                for host, since in self._needed.items()
                if time.monotonic() - since < self._limits.exclude_for_s
            ),
        )

    @property
    def _doubtful(self) -> set[str]:
        """Machines that are excluded, and would be used again where no replacement comes."""
        return {entry.host for entry in exclusions(self._folder) if entry.may_be_lifted}

    def _saved_step(self) -> int:
        """Of the newest checkpoint that the next attempt can go on from, as far as is known here."""
        return max(self._work.saved_step(), self._on_nodes)

    def _smaller(self, live: LiveJob) -> int | None:
        return smaller(self._work.config, live.job.num_nodes, live.job.procs_per_node)

    def _end_job(self) -> None:
        """Stop the job, if it has not ended, so that the next attempt is another one."""
        live, self._live, self._on_nodes = self._live, None, 0
        if live is None or self._is_ended:
            return
        if self._is_broken:
            # Ranks whose peers are gone cannot save; they would wait for them until their grace is over.
            Orders(self._folder.job_path).end(live.number)
        live.launcher.stop()

    def _abandon(self) -> None:
        """Stop an attempt because of an error, which is told whatever comes of that."""
        live = self._live
        try:
            self._end_job()
            if live is not None and "ended" not in live.record:
                close_record(self._folder, live.record, "interrupted")
        except Exception as error:
            # The record stays open, so that the job is found again.
            print(f"the job could not be stopped, and may still run: {error}", flush=True)


def _in_short(incident: Incident) -> str:
    """An incident in one line; the report has the rest."""
    what = incident.what.replace("_", " ")
    who = "" if incident.rank is None else f" of rank {incident.rank}"
    where = f" on {incident.host}" if incident.host else ""
    step = "" if incident.step is None else f", after step {incident.step}"
    first = incident.evidence.strip().partition("\n")[0]
    words = f": {first}" if first and len(first) <= _LONGEST_WORDS else ""
    return f"{what}{who}{where}{step}{words}"


def _decided(attempt: int, decision: Decision) -> Decided:
    return Decided(
        attempt=attempt,
        action=decision.action,
        reason=decision.reason,
        excluded=tuple(sorted(decision.exclude)),
        num_nodes=decision.num_nodes,
    )


def _failure(folder: RunFolder, incident: Incident, decision: Decision) -> str:
    if incident.what == "invalid":
        return incident.evidence
    who = incident.node or "the job" if incident.rank is None else f"rank {incident.rank}"
    how = incident.what.replace("_", " ") if incident.exit_code is None else f"exit code {incident.exit_code}"
    return (
        f"{folder.purpose} failed: {who} ended with {how} ({decision.reason}); logs are in "
        f"{folder.attempt(incident.attempt)}\n{incident.evidence}"
    )
