"""Which run a command works on, and that no two commands work on one."""

import sys
from pathlib import Path

import pytest

from pipelines.local_run import check_interpreter, choose_run, open_run
from pipelines.processes import lock_graph
from training.errors import UserError
from training.resolve import find_recipe, read_recipe, resolve
from training.run_folder import check_run_name


@pytest.fixture(scope="module")
def config():
    return resolve(read_recipe(find_recipe("quickstart")))


def unfinished(store, config):
    run = choose_run(store, "quickstart", config, fresh=False)
    run.folder.create(config)
    return run


def test_an_unfinished_run_goes_on(tmp_path, config):
    first = unfinished(tmp_path, config)
    assert not first.resumes
    first.lock.close()
    again = choose_run(tmp_path, "quickstart", config, fresh=False)
    assert again.folder.run == first.folder.run and again.resumes
    again.lock.close()
    assert choose_run(tmp_path, "quickstart", config, fresh=True).folder.run != first.folder.run


def test_a_run_that_another_command_works_on_is_left_alone(tmp_path, config):
    first = unfinished(tmp_path, config)
    second = choose_run(tmp_path, "quickstart", config, fresh=False)
    assert second.folder.run != first.folder.run and not second.resumes
    with pytest.raises(UserError, match="another process"):
        open_run(tmp_path, first.folder.run)


def test_a_run_is_in_use_until_the_graph_of_a_killed_command_has_stopped(tmp_path, config):
    first = unfinished(tmp_path, config)
    graph = lock_graph(first.folder)
    first.lock.close()
    with pytest.raises(UserError, match="another process"):
        open_run(tmp_path, first.folder.run)
    graph.close()
    assert open_run(tmp_path, first.folder.run).resumes


def test_strays_among_the_runs_do_not_matter(tmp_path, config):
    for name in ("quickstart-Old copy", "quickstart-empty"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "quickstart-file").touch()
    assert not choose_run(tmp_path, "quickstart", config, fresh=False).resumes


@pytest.mark.parametrize("recipe", ["größe.yaml", "Ärger.yaml", "7b.yaml", "a" * 90, "x--.y.yaml", "漢字.yaml"])
def test_every_recipes_name_gives_a_runs_name(recipe, tmp_path, config):
    check_run_name(choose_run(tmp_path, recipe, config, fresh=True).folder.run)


@pytest.mark.parametrize("store", ["/proc/foo", "{folder}/file", "{folder}/file/below"])
def test_a_store_that_cannot_be_is_one_sentence(store, tmp_path, config):
    (tmp_path / "file").touch()
    path = Path(store.format(folder=tmp_path))
    for begin in (lambda: open_run(path, "x"), lambda: choose_run(path, "quickstart", config, fresh=False)):
        with pytest.raises(UserError, match="the store"):
            begin()


def test_an_interpreter_that_kfp_cannot_start_is_told_before_anything_begins(monkeypatch):
    check_interpreter()
    monkeypatch.setattr(sys, "executable", "/home/my files/bin/python")
    with pytest.raises(UserError, match="without spaces"):
        check_interpreter()
