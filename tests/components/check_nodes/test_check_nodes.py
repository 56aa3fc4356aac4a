import math

import pytest

from components.check_nodes import check_nodes
from components.check_nodes.check_nodes import check_run
from components.check_nodes.report import as_markdown
from components.jobs.exclusions import exclusions
from components.step import Step, StepFailed
from training.config import RunConfig
from training.events import Note, read_events
from training.health.blame import Blame, Burn
from training.health.deep_result import DeepResult, load_deep, save_deep
from training.health.pairing import PairTime
from training.health.policy import save_policy
from training.run_folder import RunFolder


@pytest.fixture
def make_step(tmp_path):
    def make(deep_checks=True, **cluster):
        folder = RunFolder(tmp_path / "store", "a-run")
        folder.create(
            RunConfig.model_validate(
                {
                    "model": {"name": "org/tiny"},
                    "data": {"train": "qa.jsonl"},
                    "parallel": {"procs_per_node": 2},
                    "resilience": {"deep_checks": deep_checks, "exclude_for_s": 600},
                    "cluster": cluster or {"launcher": "local"},
                }
            )
        )
        return Step("check_nodes", str(folder.root), folder.run)

    return make


def result(num_nodes=4, *blames):
    burns = tuple(Burn(rank, f"host-{rank}", "gpu", ((1,),), 60.0) for rank in range(num_nodes))
    pairs = tuple(PairTime((node, node + 1), 0.01 if node else math.inf) for node in range(0, num_nodes - 1, 2))
    hosts = tuple(burn.host for burn in burns)
    return DeepResult(hosts, burns, (600.0,) * num_nodes, (pairs, pairs), 2**26, 1, blames)


@pytest.fixture
def job_finds(monkeypatch):
    """Lets the job find something, in place of ranks; what it was called with."""
    calls = []

    def finds(found):
        def bring_home(step, work, task, job):
            calls.append(work)
            save_deep(found, work.folder.job_path / "deep.json")
            assert work.is_done()

        monkeypatch.setattr(check_nodes, "bring_home", bring_home)
        return calls

    return finds


def test_nothing_is_done_where_it_is_not_asked_for(make_step, tmp_path, job_finds):
    calls = job_finds(result())
    with make_step(deep_checks=False) as step:
        check_run(step, tmp_path / "report.md")
    assert calls == [] and "resilience.deep_checks" in (tmp_path / "report.md").read_text()


def test_machines_that_fall_short_are_left_out_for_a_while(make_step, tmp_path, job_finds):
    slow, faulty = Blame("straggler", ("host-1",), "host-1 is slow"), Blame("faulty", ("host-3",), "host-3 errs")
    (calls) = job_finds(result(4, slow, faulty))
    with make_step(launcher="pytorchjob") as step:
        check_run(step, tmp_path / "report.md")
    assert [(e.host, e.reason) for e in exclusions(step.folder)] == [
        ("host-1", "host-1 is slow"),
        ("host-3", "host-3 errs"),
    ]
    assert all(e.until - e.since == 600 for e in exclusions(step.folder))
    report = (tmp_path / "report.md").read_text()
    assert "| slow | host-1 | host-1 is slow |" in report and "host-2 – host-3" in report
    assert (step.folder.health / "report.md").read_text() == report
    assert calls[0].folder.purpose == "health"
    # The run goes on after its pod was lost: the machines were checked.
    with make_step(launcher="pytorchjob") as step:
        check_run(step, tmp_path / "report.md")
    assert len(calls) == 1


def test_more_than_half_of_the_machines_are_never_left_out(make_step, tmp_path, job_finds):
    job_finds(result(3, *[Blame("straggler", (f"host-{i}",), f"host-{i} is slow") for i in range(2)]))
    with make_step(launcher="pytorchjob") as step:
        check_run(step, tmp_path / "report.md")
    assert exclusions(step.folder) == []
    warnings = [e.text for e in read_events(step.folder.events) if isinstance(e, Note) and e.level == "warning"]
    assert "2 of 3 machines fell short, so none is left out" in warnings


def test_a_local_run_does_not_train_on_a_machine_that_computes_wrongly(make_step, tmp_path, job_finds):
    calls = job_finds(result(1, Blame("faulty", ("host-0",), "rank 0 errs")))
    for _ in range(2):  # to start it again mends no machine
        with pytest.raises(SystemExit), make_step() as step:
            with pytest.raises(StepFailed, match="this machine must not train: rank 0 errs"):
                check_run(step, tmp_path / "report.md")
            raise SystemExit
    assert len(calls) == 2


def test_what_was_found_before_a_kill_still_leaves_machines_out(make_step, tmp_path, job_finds):
    calls = job_finds(result(4))
    with make_step(launcher="pytorchjob") as step:
        step.folder.health.mkdir(parents=True)
        save_deep(result(4, Blame("faulty", ("host-3",), "host-3 errs")), step.folder.health / "deep.json")
        check_run(step, tmp_path / "report.md")
    assert calls == [] and [e.host for e in exclusions(step.folder)] == ["host-3"]


def test_a_report_of_nothing_but_good_names_no_machine():
    assert "No machine fell short." in as_markdown(result(1))


def test_the_ranks_of_a_local_run_are_checked_by_a_job_of_their_own(make_step, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("thresholds: {burn_s: 0.1, deep_straggler_ratio: 100}")
    with make_step() as step:
        save_policy(step.folder, policy)
        check_run(step, tmp_path / "report.md")
    found = load_deep(step.folder.health / "deep.json")
    assert len(found.burns) == 2 and found.blames == ()
    assert found == load_deep(step.folder.seen_from("health").attempt(1) / "deep.json")
    assert "| 1 |" in (tmp_path / "report.md").read_text()
    assert any(
        "matrix products on 2 cpu ranks" in e.text for e in read_events(step.folder.events) if isinstance(e, Note)
    )
