"""The shell of the train step."""

from types import SimpleNamespace

from kfp import dsl

from components.train.component import train
from tests.training.ledger.lives import Life
from training.store import seal


def test_the_page_about_its_time_is_the_artifact_of_a_run_that_was_trained_before(make_run, tmp_path):
    folder = make_run().folder
    life = Life(folder, num_steps=4)
    life.supervise()
    life.begin()
    life.load()
    life.steps(1, 4)
    life.end()
    folder.model.mkdir()
    seal(folder.model, {})
    model, timeline = SimpleNamespace(uri="", metadata={}), SimpleNamespace(path=str(tmp_path / "artifact"))
    train.python_func(str(folder.root), folder.run, "", model, timeline, dsl.TaskConfig())
    assert model.uri == str(folder.model)
    page = (tmp_path / "artifact").read_text()
    assert "<title>run · timeline</title>" in page
    assert page == folder.timeline.read_text()
