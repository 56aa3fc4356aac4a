import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from training.config import RunConfig
from training.errors import UserError
from training.run_folder import RunFolder, check_run_name, run_name_from_job
from training.store import MANIFEST, Store


def config(**training):
    return RunConfig.model_validate(
        {"model": {"name": "org/model"}, "data": {"train": "org/data"}, "training": training}
    )


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "store", "a-run")


def error(call):
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


# Names


@pytest.mark.parametrize("name", ["a", "z9", "a-b", "run-2026-01-01", "a--b", "a" * 48])
def test_a_name_that_kubernetes_takes_is_valid(name):
    check_run_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "A",
        "Run",
        "1a",
        "-a",
        "a-",
        "a_b",
        "a.b",
        "a b",
        "a/b",
        "..",
        "../a",
        "/a",
        "a\n",
        "\na",
        "ü",
        "é",
        "a\0",
        "a" * 49,
        "ａ",
        "١",
        "a²",
        "a-\u2010b",
    ],
)
def test_another_name_is_refused_with_what_is_allowed(tmp_path, name):
    for call in (lambda: check_run_name(name), lambda: RunFolder(tmp_path, name)):
        assert "at most 48 lower-case letters, digits and '-'" in error(call)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "job, name",
    [
        ("Run of finetune (1a2b)", "run-of-finetune-1a2b"),
        ("shardline-finetune-2026", "shardline-finetune-2026"),
        ("2026 nightly", "run-2026-nightly"),
        ("", "run"),
        ("---", "run"),
        ("日本", "run"),
        ("7", "run-7"),
        ("Ünï", "n"),
        ("../../etc/passwd", "etc-passwd"),
    ],
)
def test_a_run_is_named_after_its_job(job, name):
    assert run_name_from_job(job) == name


def test_a_long_job_name_keeps_its_end_where_jobs_differ():
    names = {
        run_name_from_job("scheduled-run-of-the-nightly-fine-tuning-pipeline-" + end) for end in ("1a2b", "3c4d")
    }
    assert len(names) == 2


@given(st.text(max_size=120) | st.text("aZ09-_ .", max_size=120))
@example("a" * 47 + "--" + "b" * 46)
@example("-" * 200)
@example("9" * 48)
@example("a" * 49)
@example("İ" * 50)
def test_a_name_made_from_any_job_is_valid_and_always_the_same(job):
    name = run_name_from_job(job)
    check_run_name(name)
    assert run_name_from_job(job) == name


@given(st.from_regex(r"[a-z]([a-z0-9]{0,46}[a-z0-9])?", fullmatch=True))
def test_a_job_name_that_is_a_run_name_already_stays(name):
    assert run_name_from_job(name) == name


# The folder and its config


def test_a_created_run_gives_its_config_back(folder):
    folder.create(config(epochs=0.1, max_grad_norm=None))
    assert folder.config() == config(epochs=0.1, max_grad_norm=None)
    assert folder.path == folder.root / "runs" / "a-run"


def test_a_run_is_found_again_by_its_path(folder):
    folder.create(config())
    again = RunFolder.at(folder.path)
    assert (again.root, again.run, again.config()) == (folder.root, folder.run, config())


def test_creating_a_run_again_with_the_same_config_keeps_what_is_there(folder):
    folder.create(config())
    (folder.events / "rank-0.jsonl").write_text("x")
    before = folder.config_file.stat().st_mtime_ns
    folder.create(config())
    assert folder.config_file.stat().st_mtime_ns == before
    assert (folder.events / "rank-0.jsonl").read_text() == "x"


def test_creating_a_run_again_with_another_config_is_refused_and_names_what_differs(folder):
    folder.create(config(seed=1))
    message = error(lambda: folder.create(config(seed=2, epochs=3)))
    assert "exists with another configuration" in message
    assert "training.seed" in message
    assert "training.epochs" in message
    assert "training.max_steps" not in message
    assert folder.config() == config(seed=1)


def test_creating_a_run_again_takes_over_what_does_not_change_its_training(folder):
    folder.create(config())
    again = config()
    again.evaluation.max_new_tokens = 5
    again.registry.tracking_uri = "sqlite:////elsewhere.db"
    again.resilience.max_attempts = 9
    again.checkpoint.every_steps = 7
    again.cluster.launcher = "local"
    again.parallel.procs_per_node = 4
    folder.create(again)
    assert folder.config() == again

    mixed = again.model_copy(deep=True)
    mixed.evaluation.max_new_tokens = 6
    mixed.parallel.strategy = "NO_SHARD"
    assert "(parallel.strategy;" in error(lambda: folder.create(mixed))
    assert folder.config() == again


def test_a_run_without_a_config_names_the_step_to_run(folder):
    assert "run the step preflight first" in error(folder.config)
    folder.events.mkdir(parents=True)
    assert "run the step preflight first" in error(folder.config)


@pytest.mark.parametrize(
    "content, told",
    [
        (b"", "holds no sections"),
        (b"model: [", "not valid YAML"),
        (b"model: text", "'model' is 'text', not a section"),
        (b"\xff", "utf-8"),
        (b"just text", "holds no sections"),
        (b"model: {name: a}", "'data' is missing"),
        (
            b"model: {name: a}\ndata: {train: b}\ntraining: {gone_since: 1}",
            "'training.gone_since' is not a known key",
        ),
    ],
)
def test_a_config_that_was_edited_or_is_of_another_version_is_told_by_its_path(folder, content, told):
    folder.events.mkdir(parents=True)
    folder.config_file.write_bytes(content)
    for call in (folder.config, lambda: folder.create(config())):
        message = error(call)
        assert message.startswith(str(folder.config_file))
        assert "another name" in message
        assert told in message


def test_the_config_is_plain_yaml_for_people(folder):
    folder.create(config())
    assert yaml.safe_load(folder.config_file.read_text())["training"]["seed"] == 42


def test_a_run_cannot_be_made_where_a_file_is_in_the_way(folder):
    folder.root.mkdir(parents=True)
    (folder.root / "runs").write_text("in the way")
    assert f"move {folder.root / 'runs'} away" in error(lambda: folder.create(config()))


# What a run trains from


def publish(folder, kind):
    with Store(folder.root).publish(kind, "key", {}) as staging:
        (staging / "file").write_text("x")
    return folder.root / kind / "key"


@pytest.mark.parametrize(
    "there, told",
    [([], "no model yet: run the step download_model first"), (["model"], "run the step tokenize_dataset first")],
)
def test_an_input_that_was_never_made_names_the_step_to_run(folder, there, told):
    for name in there:
        folder.save_input(name, publish(folder, f"{name}s"))
    assert told in error(folder.inputs)


@pytest.mark.parametrize(
    "gone, told",
    [("model", "run the step download_model again"), ("dataset", "run the step tokenize_dataset again")],
)
@pytest.mark.parametrize("how", ["manifest", "folder", "file"])
def test_an_input_that_is_gone_from_the_store_names_the_step_to_run_again(folder, gone, told, how):
    paths = {}
    for name in ("model", "dataset"):
        paths[name] = publish(folder, f"{name}s")
        folder.save_input(name, paths[name])
    if how != "file":
        (paths[gone] / MANIFEST).unlink()
    if how != "manifest":
        (paths[gone] / "file").unlink()
    if how == "folder":
        paths[gone].rmdir()
    message = error(folder.inputs)
    assert told in message
    assert str(paths[gone]) in message


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"/no/such/folder"])
def test_a_damaged_pointer_names_the_step_to_run_again(folder, content, monkeypatch):
    # The empty path is the working folder, which must not be taken for a model even if it looks like one.
    monkeypatch.chdir(publish(folder, "models"))
    folder.save_input("model", folder.root)
    (folder.path / "inputs" / "model").write_bytes(content)
    assert "run the step download_model again" in error(folder.inputs)


def test_inputs_point_at_what_was_published(folder):
    model, dataset = publish(folder, "models"), publish(folder, "datasets")
    folder.save_input("model", model)
    folder.save_input("dataset", dataset)
    assert (folder.inputs().model, folder.inputs().dataset) == (model, dataset)


def test_attempts_are_numbers_in_ascending_order(folder):
    assert folder.attempts() == []
    for name in ("10", "9", "1", "x", ".2", "3.tmp", "-4"):
        (folder.path / "attempts" / name).mkdir(parents=True)
    assert folder.attempts() == [1, 9, 10]
    assert folder.attempt(9) == folder.path / "attempts" / "9"


@pytest.mark.parametrize("purpose", ["evaluation", "health"])
def test_another_job_s_attempts_are_apart_and_all_else_is_the_run_s(tmp_path, purpose):
    run = RunFolder(tmp_path, "a-run")
    job = run.seen_from(purpose)
    assert job.job_path == run.path / purpose == RunFolder.at(run.path / purpose).job_path
    found = RunFolder.at(job.job_path)
    assert (found.run, found.root, found.purpose, found.path) == ("a-run", tmp_path, purpose, run.path)
    assert (found.events, found.model, found.config_file) == (run.events, run.model, run.config_file)
    assert (
        found.attempt(1) == run.path / purpose / "attempts/1"
        and found.launcher_heartbeat != run.launcher_heartbeat
    )
    found.attempt(3).mkdir(parents=True)
    assert found.attempts() == [3] and run.attempts() == []
    assert (run.rank_prefix, found.rank_prefix) == ("rank-", f"{purpose}-rank-")
    # A run of that name is one.
    named = RunFolder(tmp_path, purpose)
    assert (RunFolder.at(named.path).run, RunFolder.at(named.path).purpose) == (purpose, "training")
    assert RunFolder.at(named.path / purpose).run == purpose
