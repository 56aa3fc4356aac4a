"""Tasks of lm-eval that cannot be measured are told before a job starts."""

import importlib.util

import pytest

from training.config import EvaluationConfig
from training.errors import UserError
from training.measure.task_files import check_tasks, identity_of
from training.measure.tasks import load_tasks, score_tasks


def test_a_file_of_one_s_own_is_found_and_changes_with_its_content(task_file):
    check_tasks([str(task_file)])
    found = [identity_of(str(task_file))]
    included, module = task_file.with_name("common.yaml"), task_file.with_name("functions.py")
    for file, text in (
        (task_file, "num_fewshot: 1\ninclude: common.yaml\nprocess_docs: !function functions.process\n"),
        (included, "repeats: 1\n"),
        (included, "repeats: 2\n"),
        (module, "def process(docs): return docs\n"),
        (task_file.with_name("examples.jsonl"), '{"question": "w1", "choices": ["w2"], "answer": 0}\n'),
    ):
        with file.open("a") as added:
            added.write(text)
        if file is not task_file:
            found.append(identity_of(str(task_file)))
    assert len(set(found)) == len(found)
    assert identity_of(str(task_file)) == found[-1]
    assert identity_of("arc_easy") == "arc_easy"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("examples.jsonl", "nothing.jsonl", r"FileNotFoundError: .*nothing\.jsonl"),
        ("test_split: test", "test_split: dev", "KeyError: 'dev'"),
        ("{{question}}", "{{nothing}}", "UndefinedError: 'nothing' is undefined"),
        ("doc_to_target", "doc_to_nothing", "TypeError: .*doc_to_nothing"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_the_user_s(task_file, before, after, message):
    task_file.write_text(task_file.read_text().replace(before, after))
    with pytest.raises(UserError, match=rf"names .*own\.yaml, which cannot be loaded: {message}"):
        load_tasks(EvaluationConfig(tasks=(str(task_file),)))


def test_a_hub_that_cannot_be_reached_is_worth_another_attempt(task_file, monkeypatch):
    import lm_eval.tasks

    class Away:
        def __init__(self, **settings):
            pass

        def load(self, tasks):
            raise ConnectionError("away")

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", Away)
    with pytest.raises(ConnectionError):
        load_tasks(EvaluationConfig(tasks=(str(task_file),)))


@pytest.mark.usefixtures("alone")
def test_of_a_perplexity_lower_is_better(task_file, make_model, tokenizer):
    text = task_file.read_text().partition("output_type")[0]
    task_file.write_text(
        text + "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\n"
        "doc_to_target: '{{question}}'\nmetric_list: [{metric: word_perplexity}]\n"
    )
    tasks = load_tasks(EvaluationConfig(tasks=(str(task_file),)))
    told = []
    scores = [
        score_tasks(make_model(), tokenizer, tasks, 3, is_sharded=False, on_pass=lambda: told.append(1))
        for _ in range(2)
    ]
    assert scores[0] == scores[1] and told
    score = scores[0]["own_words/word_perplexity"]
    assert score.lower_is_better and score.value > 1 and score.count == 3


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
