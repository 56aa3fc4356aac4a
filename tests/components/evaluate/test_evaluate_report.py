import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from components.evaluate.decision import Decision
from components.evaluate.facts import dataset_facts
from components.evaluate.intervals import Estimate
from components.evaluate.report import render_report
from components.evaluate.results import Generation
from components.evaluate.verdict import verdict_on
from tests.components.evaluate.reports import HOSTILE, history, measured_more, report_data
from tests.components.evaluate.results import compared, result
from training.config import RunConfig
from training.history import History

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what the page is made of."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.ids, self.text = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def data():
    return report_data()


def test_report_says_what_matters(data):
    page = Page(render_report(data))
    for words in (
        "a-run",
        "30 November 2026",
        "▼ Better. On 3,456 held-out tokens, perplexity fell from 24.8 to 9.12, by 63\N{NO-BREAK SPACE}%.",
        "−1.000",
        "60 steps over 60,000 tokens in 30 s.",
        "a question",
        "(empty: the model ended its turn at once)",
        "500 (25\N{NO-BREAK SPACE}%)".replace("\N{NO-BREAK SPACE}", " "),
        "99 %",
        "global_batch_size: 8",
        "org/tiny",
    ):
        assert " ".join(words.split()) in page.words, words
    assert page.tags.count("svg") == 3
    assert "Attempts" not in page.words


@pytest.mark.parametrize("steps", [0, 1, 2, 60, 3000])
def test_any_number_of_steps(data, steps):
    found = History((), (), 0) if steps == 0 else history(steps)
    html = render_report(replace(data, history=found))
    assert Page(html).tags.count("svg") == (3 if steps else 0)
    assert len(html) < 120_000


@pytest.mark.parametrize("steps", [1, 60, 3000])
def test_what_a_trainer_measures_besides_is_shown(data, steps):
    html = render_report(replace(data, history=measured_more(history(steps), every=1)))
    page = Page(html)
    assert page.tags.count("svg") == 4
    assert len(html) < 200_000
    for words in (
        "over 1,234 tokens",
        f"held-out loss went from 3.490 at step 1 to {3.5 - steps / 100:.3f} at step {steps}",
        "data 12 %, compute 50 %, optimizer 25 %, other 12 %",
        "Tokens per second and device 500",
        "Supervised tokens per second 600",
        "Computed positions filled 80 %",
        "Model TFLOP/s per device 100",
        "Published peak, TFLOP/s 400",
        "Model FLOPs utilisation 25 %",
    ):
        assert words in page.words


def test_what_was_not_measured_is_not_shown(data):
    words = Page(render_report(data)).words
    assert "Supervised tokens per second 600" in words
    for absent in ("while training", "Where the time went", "positions filled", "TFLOP/s", "utilisation"):
        assert absent not in words


def test_hostile_text_is_only_text(data):
    said = (Generation(HOSTILE, HOSTILE, HOSTILE),)
    hostile = replace(
        data,
        results={name: replace(one, generations=said) for name, one in data.results.items()},
        decision=Decision(False, HOSTILE, ((None, HOSTILE),), HOSTILE, HOSTILE),
        history=history(5, resumed_at=3),
        dataset={"source": HOSTILE, "note": HOSTILE, HOSTILE: 1},
        lineage={HOSTILE: HOSTILE},
        config=RunConfig.model_validate({"model": {"name": HOSTILE}, "data": {"train": HOSTILE}}),
    )
    page = Page(render_report(hostile))
    assert not {"script", "img", "iframe", "object", "embed", "link", "form"} & set(page.tags)
    assert page.words.count("alert(1)") >= 8
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_nothing_is_fetched(data):
    html = render_report(data)
    page = Page(html)
    assert not [value for _, value in page.attributes if value and re.search(r"(https?:)?//", value)]
    assert not {"src", "srcset", "action", "data"} & {name for name, _ in page.attributes}
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_charts_share_no_ids_and_bring_no_colours_or_styles_of_their_own(data):
    html = render_report(data)
    ids = Page(html).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', html)) == set(ids)
    assert html.count("<style") == 1
    body = html[html.index("<body>") :]
    assert not re.findall(r"#[0-9a-f]{6}", body)
    assert body.count("var(--train)") >= 3
    assert body.count('role="img"') == body.count("<title>") == 3


def test_reports_are_equal_for_equal_data(data):
    assert render_report(data) == render_report(data)


def test_without_generations(data):
    empty = replace(data, results={name: replace(one, generations=()) for name, one in data.results.items()})
    assert "Answers side by side" not in Page(render_report(empty)).words


def test_attempts_and_incidents(data):
    words = Page(render_report(replace(data, history=history(10, resumed_at=4)))).words
    assert "The training took 2 attempts. 1 step was computed again after a resume" in words
    assert "signal, rank 3, exit code -9" in words
    assert "attempt 2" in words


@pytest.mark.parametrize(
    ("tuned_loss", "outcome", "word"),
    [(2.0, "better", "▼ Better"), (4.0, "worse", "▲ Worse"), (3.2103, "unchanged", "= No change")],
)
def test_verdict(tuned_loss, outcome, word):
    found = compared(result("base", 3.21), result("tuned", tuned_loss))
    verdict = verdict_on(found["base"], found["tuned"])
    assert (verdict.outcome, verdict.word) == (outcome, word)


def test_a_change_that_may_be_chance_is_no_improvement():
    found = compared(result("base", 3.21), result("tuned", 3.0), width=0.3)
    verdict = verdict_on(found["base"], found["tuned"])
    assert verdict.outcome == "unchanged" and verdict.word == "≈ Not certain"
    assert "[−0.510, +0.090]" in verdict.sentence


def test_a_far_worse_model_still_has_a_report(data):
    html = render_report(replace(data, results=compared(result("base", 3.21), result("tuned", 900.0))))
    assert "▲ Worse" in html


def test_the_decision_stands_with_its_reasons(data):
    checks = ((True, "It is better."), (False, "It forgets."), (None, "Not compared."))
    decision = Decision(False, "champion", checks, "3", trouble="MLflow is away.")
    words = Page(render_report(replace(data, decision=decision))).words
    assert (
        "✗ The alias champion does not move to this model. ✓ It is better. ✗ It forgets. – Not compared." in words
    )
    assert "Attention. MLflow is away." in words


def test_the_champion_stands_between_base_and_tuned_model(data):
    found = compared(result("base", 3.21), result("tuned", 2.21), result("champion", 2.5, "their answer"))
    words = Page(render_report(replace(data, results=found))).words
    assert "Base model Champion Tuned model Change from base Change from champion" in words
    assert "3.210 [3.110, 3.310] 2.500 [2.400, 2.600] 2.210 [2.110, 2.310] −1.000" in words
    assert "Champion their answer Tuned model an answer" in words


def test_sources_and_scores_have_rows_of_their_own(data):
    found = compared(result("base", 3.21), result("tuned", 2.21), sources=("wiki", "chat"))
    words = Page(render_report(replace(data, results=found))).words
    assert "By data source" in words and "wiki 1,728 tokens in 20 documents" in words
    assert "ROUGE-L of answers 40 answers 0.400 [0.300, 0.500] 0.400 [0.300, 0.500] 0.000" in words
    assert "arc_easy/acc 100 examples 0.500" in words
    found["tuned"] = replace(found["tuned"], lower_is_better=("arc_easy/acc",))
    words = Page(render_report(replace(data, results=found))).words
    assert "arc_easy/acc 100 examples, lower is better 0.500" in words


def test_a_single_document_has_no_interval(data):
    alone = {
        name: replace(one, loss_low=None, loss_high=None, num_documents=1, changes={})
        for name, one in data.results.items()
    }
    alone["tuned"] = replace(alone["tuned"], changes={"base": Estimate(-1.0, None, None, 1)})
    words = Page(render_report(replace(data, results=alone))).words
    assert "Of a single document there is no confidence interval" in words and "95 % [" not in words


def test_dataset_facts_keep_what_they_do_not_know():
    facts = dataset_facts({"num_truncated": 3, "some_thing": "x", "missing": None, "source": "s", "parts": [{}]})
    assert facts == {"Rows cut at the end": "3", "Some thing": "x"}


def test_what_the_training_s_time_went_into_is_told_where_it_is_known():
    assert "Over the whole time" not in render_report(report_data())
    page = render_report(replace(report_data(), goodput="goodput 87 % over 2 attempts (redone 12 s)"))
    assert "Over the whole time: goodput 87 % over 2 attempts (redone 12 s)" in page
