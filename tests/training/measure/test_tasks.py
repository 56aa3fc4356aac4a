"""Tasks of lm-eval that cannot be measured are told before a job starts."""

import importlib.util

import pytest

from training.errors import UserError
from training.measure.task_files import check_tasks, identity_of


def test_a_file_of_one_s_own_is_found_and_changes_with_its_content(task_file):
    check_tasks([str(task_file)])
    before = identity_of(str(task_file))
    task_file.write_text(task_file.read_text() + "num_fewshot: 1\n")
    assert identity_of(str(task_file)) != before
    assert identity_of("arc_easy") == "arc_easy"


def test_without_tasks_nothing_is_looked_for(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: pytest.fail("looked for"))
    check_tasks([])


def test_a_missing_package_is_told_with_its_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"lm-eval is not installed: install shardline\[eval\]"):
        check_tasks(["arc_easy"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read as a task of lm-eval: No such file or directory"),
        ("task: [", "cannot be read as a task of lm-eval: while parsing"),
        ("- a\n- b\n", "cannot be read as a task of lm-eval: Expected YAML dict"),
        ("tasks: x\n", "names no task: it needs the keys `task`"),
        ("include: other.yaml\ntask: x\n", "No such file or directory"),
    ],
)
def test_a_file_that_is_no_task_is_told(tmp_path, text, message):
    file = tmp_path / "own.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message):
        check_tasks([str(file)])


def test_an_unknown_name_is_told_with_those_like_it(monkeypatch):
    import lm_eval.tasks

    class Known:
        all_tasks = ("arc_easy", "arc_challenge")

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", Known)
    check_tasks(["arc_easy"])
    with pytest.raises(UserError, match=r"names arc_esay, which lm-eval does not have \(did you mean arc_easy"):
        check_tasks(["arc_easy", "arc_esay"])
