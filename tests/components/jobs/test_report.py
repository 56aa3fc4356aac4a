"""The page about an attempt that failed."""

import pytest

from components.jobs.exclusions import exclude
from components.jobs.meanings import meaning_of
from components.jobs.policy import Decision
from components.jobs.report import failure_page, newest_report, write_report
from training.events import Incident
from training.run_folder import RunFolder

AGAIN = Decision("restart_in_place", "it goes on from the checkpoint of step 20", num_nodes=2)
END = Decision("stop", "its time is up")


def page(tmp_path, decision=AGAIN, **incident):
    incident = Incident(**{"attempt": 1, "what": "exception", **incident})
    return failure_page(RunFolder(tmp_path, "a-run"), incident, decision)


def test_the_page_tells_what_where_and_what_comes_next(tmp_path):
    text = page(tmp_path, what="oom", exit_code=137, node="a-run-1-worker-3", evidence="worker-3: OOMKilled\n")
    first, second, third, *_ = text.split("\n\n")
    assert first == "## a-run: attempt 1 failed"
    assert second.startswith("**oom** (exit code 137) in the pod `a-run-1-worker-3`: ")
    assert "cluster.memory_per_node" in second
    assert third == "Next, in the same place: it goes on from the checkpoint of step 20."
    assert "```text\nworker-3: OOMKilled\n```" in text
    assert str(tmp_path / "runs/a-run/attempts") in text


def test_the_page_of_a_rank_names_it_and_ends_the_run(tmp_path):
    text = page(tmp_path, END, rank=0, exit_code=1)
    assert "**exception** (exit code 1), first at rank 0: " in text
    assert "It ends here: its time is up." in text
    assert "(no words were left)" in text


def test_the_page_of_a_hang_names_machine_step_stacks_and_what_is_excluded(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    stacks = folder.attempt(1) / "stacks"
    stacks.mkdir(parents=True)
    (stacks / "rank-3.txt").touch()
    exclude(folder, {"gpu-7": "HyperPod says it is Unschedulable"}, 3600, now=None)
    text = page(tmp_path, what="hang", rank=3, host="gpu-7", step=41, fingerprint="hang:`forward`")
    assert "**hang**, first at rank 3 on `gpu-7`, at step 41: " in text
    assert f"`{stacks / 'rank-3.txt'}`" in text and "Fingerprint: `hang:forward`" in text
    assert "- `gpu-7` until 20" in text and "UTC: HyperPod says it is Unschedulable" in text


@pytest.mark.parametrize("words", ["```\n# not a heading\n```", "a ```` b", "`", "~~~", "no ticks", "`" * 30])
def test_words_cannot_leave_their_block(tmp_path, words):
    text = page(tmp_path, evidence=f"{words}\n**not bold**")
    lines = text.splitlines()
    opening = next(line for line in lines if line.endswith("text") and set(line[:-4]) == {"`"})
    fence = opening.removesuffix("text")
    begin = lines.index(opening)
    # CommonMark ends a block at a line of at least as many ticks.
    end = next(
        i for i in range(begin + 1, len(lines)) if lines[i].strip("`") == "" and len(lines[i]) >= len(fence)
    )
    assert "\n".join(lines[begin + 1 : end]) == f"{words}\n**not bold**"


CLASSES = (
    *("invalid", "interrupted", "signal", "exception", "oom", "hang", "nonfinite", "preempted", "node_lost"),
    *("node_suspect", "network", "storage", "evicted"),
    *("queue_timeout", "start_timeout", "run_timeout", "stall_timeout"),
)


@pytest.mark.parametrize("what", CLASSES)
@pytest.mark.parametrize("purpose", ["training", "evaluation", "health"])
def test_every_class_of_incident_has_a_meaning_in_words(what, purpose):
    meaning = meaning_of(what, purpose)
    assert meaning != what and "{" not in meaning
    assert purpose == "training" or "train leaner" not in meaning


def test_the_newest_page_is_that_of_the_last_attempt_only(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    assert newest_report(folder) is None
    folder.attempt(1).mkdir(parents=True)
    incident = Incident(attempt=1, what="exception", evidence="ünï")
    path = write_report(folder, incident, AGAIN)
    assert path == folder.attempt(1) / "report.md"
    assert "ünï" in newest_report(folder)
    folder.attempt(2).mkdir()
    assert newest_report(folder) is None
