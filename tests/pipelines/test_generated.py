import ast
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from components.image import IMAGE, STEPS_IMAGE
from pipelines import compiler
from pipelines.compiler import COMPILED, compile_all, drifted, with_image
from pipelines.finetune import STORE_MOUNT
from pipelines.progress import STEPS as SHOWN_STEPS
from pipelines.reference import reference_page
from tools import generate_docs
from training.config import DataSource, GateConfig, RunConfig
from training.errors import UserError

ROOT = Path(__file__).parents[2]
STEPS = generate_docs.STEPS
SHARED = {"cluster", "jobs", "timeline", "tracking"}
"""Packages beside the steps."""


# The compiled graph


@pytest.fixture(scope="module")
def documents():
    return list(yaml.safe_load_all((COMPILED / "finetune.yaml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def graph(documents):
    return documents[0]


@pytest.fixture(scope="module")
def platform(documents):
    return documents[1]["platforms"]["kubernetes"]


def tasks(graph):
    """Name → task, of the whole graph whatever they are nested in."""
    dags = [graph["root"]["dag"], *(part["dag"] for part in graph["components"].values() if "dag" in part)]
    return {
        name: task
        for dag in dags
        for name, task in dag["tasks"].items()
        if "dag" not in graph["components"][task["componentRef"]["name"]]
    }


def leaves(graph):
    return {name: part for name, part in graph["components"].items() if "executorLabel" in part}


def test_the_committed_graph_is_what_the_source_compiles_to():
    assert drifted() == [], "run `shardline compile` and commit the result"


def test_compiling_twice_gives_the_same_bytes(tmp_path):
    (first,), (second,) = compile_all(tmp_path / "a"), compile_all(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("change", ["edit", "append", "remove"])
def test_a_committed_graph_that_was_changed_is_found(tmp_path, monkeypatch, change):
    shutil.copytree(COMPILED, tmp_path / "compiled")
    monkeypatch.setattr(compiler, "COMPILED", tmp_path / "compiled")
    assert drifted() == []
    file = tmp_path / "compiled" / "finetune.yaml"
    if change == "edit":
        file.write_text(file.read_text().replace(IMAGE, "somewhere/else:1"))
    elif change == "append":
        file.write_text(file.read_text() + "\n")
    else:
        file.unlink()
    assert drifted() == ["finetune.yaml"]


def test_there_is_no_compiled_graph_without_a_source():
    assert {path.name for path in COMPILED.iterdir()} == set(compiler._GRAPHS)


def test_the_graph_has_a_task_for_every_step(graph):
    assert set(tasks(graph)) == {step.replace("_", "-") for step in STEPS}
    assert tuple(SHOWN_STEPS) == STEPS


def test_every_step_mounts_the_store(graph, platform):
    executors = platform["deploymentSpec"]["executors"]
    assert set(executors) == set(graph["deploymentSpec"]["executors"])
    for name, executor in executors.items():
        (mount,) = executor["pvcMount"]
        assert mount["mountPath"] == STORE_MOUNT, name
        assert mount["pvcNameParameter"]["componentInputParameter"].endswith("store_claim"), name


def test_caching_is_off_in_every_step(graph):
    for name, task in tasks(graph).items():
        assert task.get("cachingOptions", {}) == {}, name


def test_every_step_runs_in_the_image_and_installs_nothing(graph):
    for name, executor in graph["deploymentSpec"]["executors"].items():
        container = executor["container"]
        needs_gpus = name in ("exec-check-nodes", "exec-train", "exec-evaluate")
        assert container["image"] == (IMAGE if needs_gpus else STEPS_IMAGE), name
        command = " ".join(container["command"])
        assert "pip install" not in command, name
        assert "ensurepip" not in command, name


def test_another_image_takes_the_place_of_both():
    text = (COMPILED / "finetune.yaml").read_text()
    images = re.findall(r"image: (\S+)", with_image(text, "registry:5000/team/shardline:2"))
    assert set(images) == {"registry:5000/team/shardline:2", "registry:5000/team/shardline:2-steps"}
    for wrong in ("registry:5000/team/shardline", "shardline@sha256:0123"):
        with pytest.raises(UserError, match="give it as REPOSITORY:TAG"):
            with_image(text, wrong)


def test_every_parameter_of_the_pipeline_is_described_and_has_a_default(graph):
    parameters = graph["root"]["inputDefinitions"]["parameters"]
    assert 16 <= len(parameters) <= 22
    for name, parameter in parameters.items():
        assert parameter.get("description"), name
        assert parameter.get("isOptional"), name
    assert graph["pipelineInfo"]["description"]


def test_every_input_of_a_step_is_described(graph):
    # Of outputs kfp takes no description from a docstring's Args; the README has it.
    for step, part in leaves(graph).items():
        undescribed = [
            name
            for name, port in part["inputDefinitions"]["parameters"].items()
            # kfp gives the final status of the pipeline, and drops its description.
            if not port.get("description") and port["parameterType"] != "TASK_FINAL_STATUS"
        ]
        assert undescribed == [], step


def test_every_input_and_output_is_described_in_its_readme():
    for step in STEPS:
        for line in generate_docs.component_readme(step).splitlines():
            if line.startswith("| `"):
                assert line.rstrip("| ").count("|") == 3, f"{step}: {line} has no meaning"


def test_the_exit_handler_runs_however_the_pipeline_ends(graph):
    closing = graph["root"]["dag"]["tasks"]["stop-training"]
    assert closing["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"


def test_no_step_begins_before_what_it_needs(graph):
    def needed(name):
        return set(tasks(graph)[name].get("dependentTasks", []))

    (condition,) = [
        task
        for part in graph["components"].values()
        for task in part.get("dag", {}).get("tasks", {}).values()
        if "condition" in task.get("triggerPolicy", {})
    ]
    assert condition["dependentTasks"] == ["preflight"]
    assert needed("download-model") == needed("tokenize-dataset") == set(), "all under one condition"
    assert {"download-model", "tokenize-dataset", "check-nodes"} <= needed("train")
    assert "train" in needed("evaluate")
    assert "evaluate" in needed("register-model")


def test_preflight_sets_a_field_for_every_parameter_that_it_takes():
    """A parameter that reaches no field would be accepted and ignored."""
    tree = ast.parse((ROOT / "components/preflight/component.py").read_text())
    (flat,) = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    fields = [key.value for key in flat.keys]
    for field in fields:
        section, _, key = field.partition(".")
        assert key in RunConfig.model_fields[section].annotation.model_fields, field
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    parameters = {argument.arg for argument in function.args.args}
    rest = {"store", "run", "job", "recipe", "overrides", "config", "store_claim", "skip_unchanged"}
    assert {value.id for value in flat.values} == parameters - rest
    described = dict(
        line.strip().split(": ", 1) for line in ast.get_docstring(function).splitlines() if ": Sets " in line
    )
    for key, value in zip(flat.keys, flat.values, strict=True):
        assert described[value.id] == f"Sets {key.value}."


# Generated pages


def test_the_generated_pages_are_up_to_date():
    stale = [
        str(path.relative_to(ROOT))
        for path, content in generate_docs.pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != content
    ]
    assert stale == [], "run `make docs` and commit the result"


def test_a_page_that_was_changed_is_found_and_written_again(tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "page.md"
    monkeypatch.setattr(generate_docs, "ROOT", tmp_path)
    monkeypatch.setattr(generate_docs, "pages", lambda: {page: "content\n"})
    assert generate_docs.main(check=True) == 1
    assert "docs/page.md is out of date" in capsys.readouterr().err
    assert not page.exists()
    assert generate_docs.main(check=False) == 0
    assert generate_docs.main(check=True) == 0
    page.write_text("edited\n")
    assert generate_docs.main(check=True) == 1


def test_the_reference_names_every_field_with_its_meaning():
    rows = [line for line in reference_page().splitlines() if line.startswith("| `")]
    sections = [field.annotation for field in RunConfig.model_fields.values()]
    fields = [key for section in (*sections, DataSource, GateConfig) for key in section.model_fields]
    assert sorted(row.split("`")[1] for row in rows) == sorted(fields)
    for row in rows:
        cells = [cell.strip() for cell in row.replace("\\|", "").strip("|").split("|")]
        assert len(cells) == 4, row
        assert all(cells), row
        assert "PydanticUndefined" not in row
        assert "typing." not in row


# The rooms of the code


def python_files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def imported(tree, *, top_only=False):
    """Dotted names of the modules that a file imports, inside functions too."""
    nodes = tree.body if top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def imports_of(path, **options):
    return list(imported(ast.parse(path.read_text(encoding="utf-8")), **options))


@pytest.mark.parametrize("path", python_files("training"), ids=lambda path: path.name)
def test_training_imports_no_room_above_it_and_no_orchestrator(path):
    forbidden = {"components", "pipelines", "tools", "tests", "kfp", "kubernetes", "mlflow"}
    assert [name for name in imports_of(path) if name.split(".")[0] in forbidden] == []


@pytest.mark.parametrize("path", python_files("components"), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_component_imports_no_pipeline_and_no_other_steps_modules(path):
    folder = path.relative_to(ROOT / "components").parts[0]
    shared = {"image"} if folder == "cluster" else {"step", "image", "cluster", "charts", "pages"}
    allowed = {folder} | shared | (SHARED if folder in STEPS else set())
    names = imports_of(path)
    assert [name for name in names if name.split(".")[0] in ("pipelines", "tools", "tests")] == []
    others = [name for name in names if name.split(".")[0] == "components" and name.split(".")[1] not in allowed]
    assert others == []


@pytest.mark.parametrize("path", python_files("pipelines"), ids=lambda path: path.name)
def test_pipelines_know_a_step_by_its_shell_alone(path):
    """And the cluster, the registry, and of a job what it looks like and what it left: commands show these."""
    views = {"describe", "render", "attempts", "evidence", "report"}
    names = [name.split(".") for name in imports_of(path) if name.startswith("components.")]
    shown = [
        name
        for name in names
        if name[1] in ("cluster", "image", "timeline", "tracking") or (name[1] == "jobs" and name[2] in views)
    ]
    views_of_steps = (["evaluate", "formats"], ["tokenize_dataset", "preview"])
    shown += [name for name in names if name[1:3] in views_of_steps or name[1] == "tracking"]
    assert [".".join(name) for name in names if name not in shown and name[2:3] != ["component"]] == []


@pytest.mark.parametrize("path", python_files("components/jobs"), ids=lambda path: path.name)
def test_the_outside_view_of_a_job_imports_no_torch(path):
    assert [name for name in imports_of(path) if name.split(".")[0] in ("torch", "transformers")] == []


@pytest.mark.parametrize("step", STEPS)
def test_a_shell_imports_at_its_top_what_compiling_needs_and_no_more(step):
    path = ROOT / "components" / step / "component.py"
    allowed = {"kfp", "components", *sys.stdlib_module_names}
    for name in imports_of(path, top_only=True):
        assert name.split(".")[0] in allowed
        assert not name.startswith("components.") or name in (
            "components.image.IMAGE",
            "components.image.STEPS_IMAGE",
        )


@pytest.mark.parametrize("step", STEPS)
def test_a_component_is_a_folder_with_its_papers(step):
    folder = ROOT / "components" / step
    for name in ("__init__.py", "component.py", "metadata.yaml", "README.md"):
        assert (folder / name).is_file(), name
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text(encoding="utf-8"))
    assert metadata["name"] == step
    assert metadata["stability"] in ("experimental", "alpha", "beta", "stable")
    assert metadata["tags"]


def test_every_folder_of_components_is_a_step_of_the_graph():
    folders = {path.name for path in (ROOT / "components").iterdir() if (path / "__init__.py").is_file()}
    assert folders == {*STEPS, *SHARED}, "beside the steps, only what they share"
