"""Sources of data, rules of the gate: what of the configuration has to fit together."""

import pytest

from training.errors import UserError
from training.resolve import resolve


def config(data=None, **sections):
    return resolve({"model": {"name": "org/model"}, "data": {"train": "a.jsonl", **(data or {})}, **sections})


def problem(data=None, **sections):
    with pytest.raises(UserError) as caught:
        config(data, **sections)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("a.jsonl", ["a.jsonl"]),
        (["a.jsonl", "b.csv"], ["a.jsonl", "b.csv"]),
        ({"source": "a.jsonl"}, ["a.jsonl"]),
        ([{"source": "a.jsonl", "weight": 2}, {"source": "b.csv", "weight": 1}], ["a.jsonl", "b.csv"]),
    ],
)
def test_sources_are_one_name_or_a_list_of_names_or_of_more(given, names):
    assert [source.source for source in config({"train": given}).data.train_sources] == names


def test_a_source_takes_what_it_does_not_set_from_the_section():
    data = config(
        {
            "train": [{"source": "org/a", "split": "x"}, {"source": "org/b", "format": "text", "columns": {}}],
            "revision": "main",
            "subset": "en",
            "format": "chat",
            "columns": {"messages": "turns"},
        }
    ).data
    first, second = data.train_sources
    assert (first.split, first.subset, first.revision) == ("x", "en", "main")
    assert (first.format, first.columns) == ("chat", {"messages": "turns"})
    assert (second.split, second.format, second.columns) == ("train", "text", {})


def test_held_out_rows_have_a_split_of_their_own():
    (source,) = config({"heldout": "org/data"}).data.heldout_sources
    assert source.split == "test"
    assert config().data.heldout_sources == ()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"train": []}, "data.train is an empty list"),
        ({"heldout": []}, "data.heldout is an empty list"),
        ({"train": ["a", "a"]}, "data.train has 'a' twice"),
        ({"train": [{"source": "a", "weight": 1}, "b"]}, "weights for 1 of 2 sources: give 'b' one too"),
        ({"train": [{"source": "a", "weight": 0}]}, "'data.train.0.weight' is 0"),
        ({"train": [{"source": "a", "weigth": 1}]}, "did you mean 'weight'?"),
        ({"train": [{"weight": 1}]}, "'data.train.0.source' is missing"),
        ({"heldout": [{"source": "a", "weight": 1}]}, "every held-out row counts once"),
        ({"train": 7}, "'data.train' is 7"),
        ({"columns": {"mesages": "x"}}, "'data.columns.mesages'"),
        ({"format": "chat", "prompt_template": "{instruction}"}, "no source has the format instruction"),
        ({"format": "text", "system_prompt": "x"}, "all sources have the format text"),
    ],
)
def test_sources_that_do_not_fit_are_told(data, told):
    assert told in problem(data)


def test_the_same_source_twice_needs_names():
    twice = [{"source": "a", "name": "first"}, {"source": "a", "name": "second"}]
    assert len(config({"train": twice}).data.train_sources) == 2


@pytest.mark.parametrize("rule", ["floors", "max_drops"])
def test_a_rule_about_what_is_not_measured_is_refused_before_the_run(rule):
    gate = {"gate": {rule: {"arc_easy/acc": 0.1}}}
    assert "evaluation.tasks is empty" in problem(registry=gate)
    config(registry=gate, evaluation={"tasks": ["arc_easy"]})
    answers = {"gate": {rule: {"rougeL": 0.1}}}
    config(registry=answers)
    assert "evaluation.num_scored is 0" in problem(registry=answers, evaluation={"num_scored": 0})


def test_a_config_of_several_sources_is_read_back_as_it_was_written():
    import yaml

    from training.resolve import to_yaml

    before = config({"train": [{"source": "a", "weight": 1}, {"source": "b", "weight": 2}], "heldout": "c"})
    assert resolve(yaml.safe_load(to_yaml(before))) == before
