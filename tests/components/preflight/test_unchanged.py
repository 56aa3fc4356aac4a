"""A schedule trains only where there is something new."""

import json
import os
import shutil

import pytest
import yaml

from components.preflight.prepare import prepare
from components.preflight.unchanged import finished_before, mark_of, save_mark
from components.step import Step
from tests.doubles.models import save_tiny_model
from training.events import Note, read_events
from training.resolve import resolve
from training.run_folder import RunFolder


def config(**sections):
    base = {"model": {"name": "org/model", "revision": "a" * 40}, "data": {"train": "org/data"}}
    return resolve({name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}})


def mark(contents=(("train",), ("heldout",)), **sections):
    return mark_of(config(**sections), contents)


# What makes a difference


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"name": "org/other"}},
        {"model": {"revision": "b" * 40}},
        {"data": {"sequence_length": 64}},
        {"data": {"heldout_fraction": 0.5}},
        {"data": {"train": [{"source": "org/data", "weight": 2}]}},
        {"data": {"train": [{"source": "org/data", "format": "text"}]}},
        {"data": {"train": [{"source": "org/data", "columns": {"text": "body"}}]}},
        {"training": {"seed": 7}},
        {"training": {"learning_rate": 1e-3}},
        {"training": {"method": "lora"}},
        {"training": {"method": "lora"}, "lora": {"rank": 99}},
    ],
)
def test_what_decides_the_result_changes_the_mark(sections):
    assert mark(**sections) != mark()


@pytest.mark.parametrize(
    "contents",
    [
        (("other",), ("heldout",)),
        (("train",), ("other",)),
        (("train",), ()),
        (("heldout",), ("train",)),
        (("train", "heldout"), ()),
        (("train", "train"), ("heldout",)),
    ],
)
def test_another_content_of_the_data_changes_the_mark(contents):
    assert mark(contents) != mark()


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"train": "elsewhere/train.jsonl"}},
        {"data": {"train": [{"source": "elsewhere/train.csv", "name": "mine", "split": "all", "subset": "x"}]}},
        {"data": {"num_workers": 3, "streaming": True}},
        {"data": {"revision": "c" * 40}},
        {"parallel": {"num_nodes": 4}},
        {"cluster": {"launcher": "pytorchjob", "queue": "team-a"}},
        {"resilience": {"max_attempts": 5}},
        {"registry": {"model_name": "mine"}},
    ],
)
def test_names_of_data_and_the_place_of_the_training_do_not_change_the_mark(sections):
    assert mark(**sections) == mark()


# Which runs count


@pytest.fixture
def store(tmp_path):
    def add(name, text="mark", finished=True):
        folder = RunFolder(tmp_path, name)
        folder.path.mkdir(parents=True)
        save_mark(folder, text)
        if finished:
            (folder.path / "registration.json").write_text("{}")
        return folder

    return add


def test_a_finished_run_of_the_same_mark_is_found(store, tmp_path):
    store("before")
    assert finished_before(RunFolder(tmp_path, "new"), "mark") == "before"


@pytest.mark.parametrize("text, finished", [("mark", False), ("another", True)])
def test_a_run_that_is_not_finished_or_was_trained_from_something_else_does_not_count(
    store, tmp_path, text, finished
):
    store("before", text, finished)
    assert finished_before(RunFolder(tmp_path, "new"), "mark") is None


def test_a_run_is_not_its_own_predecessor(store):
    assert finished_before(store("before"), "mark") is None


def test_an_empty_store_has_no_predecessor(tmp_path):
    assert finished_before(RunFolder(tmp_path / "none", "new"), "mark") is None


# Through preflight


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def world(tmp_path, model):
    return World(tmp_path, model)


class World:
    """A store and a data file; each run is prepared as a schedule does, and may be finished."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.data = folder / "train.jsonl"
        self.write("a")

    def write(self, word):
        row = {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": "b"}]}
        self.data.write_text(json.dumps(row) + "\n")

    def prepare(self, run, overrides="", finish=True, skip_unchanged=True):
        recipe = yaml.safe_dump({"model": {"name": str(self.model)}, "data": {"train": str(self.data)}})
        self.step = Step("preflight", str(self.folder / "store"), run)
        prepared = prepare(self.step, recipe, overrides, {}, skip_unchanged=skip_unchanged)
        if finish and prepared.proceed:
            (self.step.folder.path / "registration.json").write_text("{}")
        return prepared


def test_the_second_of_two_equal_runs_stops_and_says_why(world):
    first, second = world.prepare("monday"), world.prepare("tuesday")
    assert (first.proceed, second.proceed) == (True, False)
    told = "nothing has changed since the run 'monday': it is not trained again"
    assert second.page.startswith("## tuesday\n")
    assert "| data | " in second.page
    assert second.page.rstrip().endswith(told)
    assert world.step.detail == told
    assert told in [event.text for event in read_events(world.step.folder.events) if isinstance(event, Note)]
    assert not world.step.folder.config_file.exists()


def test_without_the_wish_the_second_is_trained_too(world):
    world.prepare("monday")
    assert world.prepare("tuesday", skip_unchanged=False).proceed


def test_the_same_data_under_another_name_is_nothing_new(world):
    world.prepare("monday")
    world.data = world.data.rename(world.folder / "renamed.jsonl")
    assert not world.prepare("tuesday").proceed


def test_other_data_under_the_same_name_is_trained(world):
    world.prepare("monday")
    world.write("c")
    assert world.prepare("tuesday").proceed
    world.write("a")
    assert not world.prepare("wednesday").proceed


def test_a_setting_that_changed_is_trained(world):
    world.prepare("monday")
    assert world.prepare("tuesday", "training.seed=7").proceed
    assert not world.prepare("wednesday", "resilience.max_attempts=4").proceed


def test_a_local_model_that_was_replaced_under_its_name_is_trained(world, tmp_path):
    world.model = shutil.copytree(world.model, tmp_path / "own")
    world.prepare("monday")
    weights = world.model / "model.safetensors"
    assert not world.prepare("tuesday").proceed
    os.utime(weights, (0, 0))
    assert world.prepare("wednesday").proceed


def test_a_gguf_file_counts_by_its_name_size_and_time(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    first = mark(model={"name": str(path), "revision": None})
    assert mark(model={"name": str(path), "revision": None}) == first
    os.utime(path, (0, 0))
    assert mark(model={"name": str(path), "revision": None}) != first


def test_a_run_that_was_not_finished_does_not_keep_the_next_from_being_trained(world):
    world.prepare("monday", finish=False)
    assert world.prepare("tuesday").proceed


def test_a_run_that_is_started_again_goes_on_although_it_is_finished(world):
    world.prepare("monday")
    assert world.prepare("monday").proceed
