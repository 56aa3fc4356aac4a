import copy
import shutil
from pathlib import Path

import pytest
import yaml

import pipelines
from training.config import RunConfig
from training.errors import UserError
from training.resolve import (
    find_recipe,
    load_recipe,
    parse_override,
    read_recipe,
    resolve,
    split_overrides,
    to_yaml,
)

MINIMAL = {"model": {"name": "org/model"}, "data": {"train": "org/data"}}

SHIPPED = sorted((Path(pipelines.__file__).parent / "recipes").glob("*.yaml"))


def problem(recipe=MINIMAL, overrides=(), flat=None):
    with pytest.raises(UserError) as caught:
        resolve(recipe, overrides, flat)
    return str(caught.value)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Sources and their order


def test_an_override_wins_over_the_recipe_and_a_flat_parameter_over_both():
    recipe = {**MINIMAL, "training": {"seed": 1, "epochs": 2, "max_steps": 3}}
    config = resolve(recipe, ["training.epochs=20", "training.max_steps=30"], {"training.max_steps": 300})
    assert (config.training.seed, config.training.epochs, config.training.max_steps) == (1, 20, 300)


def test_of_two_overrides_of_a_field_the_later_wins():
    assert resolve(MINIMAL, ["training.seed=1", "training.seed=2"]).training.seed == 2


def test_an_override_reaches_a_section_that_the_recipe_lacks():
    assert resolve({}, ["model.name=a", "data.train=b"]).model.name == "a"


def test_an_override_leaves_the_other_fields_of_its_section():
    recipe = {**MINIMAL, "training": {"seed": 1, "epochs": 2}}
    assert resolve(recipe, ["training.seed=5"]).training.epochs == 2


def test_resolving_does_not_change_what_it_is_given():
    recipe = {**copy.deepcopy(MINIMAL), "training": {"seed": 1}, "registry": None}
    overrides, flat = ["training.seed=2", "registry.alias=prod", "cluster.launcher=local"], {"model.revision": "x"}
    before = copy.deepcopy((recipe, overrides, flat))
    config = resolve(recipe, overrides, flat)
    config.model.name = "changed"
    assert (recipe, overrides, flat) == before


def test_a_section_of_which_all_lines_are_commented_out_is_as_good_as_none():
    recipe = yaml.safe_load("model: {name: a}\ndata: {train: b}\ntraining:\n  # seed: 7\n")
    assert resolve(recipe).training.seed == 42
    assert resolve(recipe, ["training.seed=3"]).training.seed == 3


@pytest.mark.parametrize("given, expected", [(2.0, 2), ("2", 2), (2, 2)])
def test_a_whole_number_in_another_type_is_taken_for_an_integer_field(given, expected):
    value = resolve(MINIMAL, flat={"training.max_steps": given}).training.max_steps
    assert value == expected
    assert type(value) is int


def test_a_fraction_is_not_taken_for_an_integer_field():
    assert "training.max_steps" in problem(flat={"training.max_steps": 2.5})


# Values of overrides


@pytest.mark.parametrize(
    "text, expected",
    [
        ("training.learning_rate=1e-4", 1e-4),
        ("training.learning_rate=1E-4", 1e-4),
        ("training.learning_rate=.0001", 1e-4),
        ("training.learning_rate='1e-4'", 1e-4),
        ("training.max_grad_norm=null", None),
        ("training.max_grad_norm=~", None),
        ("training.max_grad_norm=", None),
        ("training.max_grad_norm=5e-1", 0.5),
        (" training.seed = 7 ", 7),
        ("training.seed='7'", 7),
        ("checkpoint.keep_after_finish=yes", True),
        ("checkpoint.keep_after_finish=false", False),
        ("model.name=a=b", "a=b"),
        ("model.name=a#b", "a#b"),
        ("model.name='a: b'", "a: b"),
        ('model.name="123"', "123"),
        ("model.name='1e5'", "1e5"),
        ("model.name=1e5", "1e5"),
        ("model.name=nan", "nan"),
        ("model.name=infinity", "infinity"),
        ("model.name='null'", "null"),
        ("model.name='yes'", "yes"),
        ("model.revision='20240101'", "20240101"),
        ("model.name=ünï/日本", "ünï/日本"),
        ("data.train=~/data.jsonl", "~/data.jsonl"),
    ],
)
def test_the_value_of_an_override_is_yaml_and_its_field_decides_the_type(text, expected):
    config = resolve(MINIMAL, [text])
    section, field = text.split("=")[0].strip().split(".")
    value = getattr(getattr(config, section), field)
    assert value == expected
    assert type(value) is type(expected)


def test_a_list_reaches_the_field_that_then_refuses_it():
    assert parse_override("training.seed=[1, 2]") == ("training.seed", [1, 2])
    assert "'training.seed' is [1, 2]" in problem(overrides=["training.seed=[1, 2]"])


@pytest.mark.parametrize(
    "text", ["model.name=123", "model.name=yes", "model.name=2024-01-01", "model.revision=1.5"]
)
def test_text_that_yaml_takes_for_something_else_is_refused_with_the_remedy(text):
    assert "put text in quotes" in problem(overrides=[text])


@pytest.mark.parametrize(
    "value", ["[1", "a: b: c", "'open", "@x", "%", "\x00", "!!python/name:os.system", "2024-13-01"]
)
def test_a_value_that_is_not_yaml_is_refused_by_the_name_of_its_field(value):
    message = problem(overrides=[f"model.name={value}"])
    assert "model.name" in message
    assert "quotes" in message


@pytest.mark.parametrize("text", ["training.seed", "training=5", "seed=5", "", "=", "=5", "training:seed=5"])
def test_an_override_of_another_form_is_refused_with_an_example(text):
    assert "section.field=value, as in training.seed=7" in problem(overrides=[text])


def test_the_pipelines_overrides_are_split_at_lines_and_semicolons():
    text = "a.b=1; c.d=2\n\n  e.f=[3, 4];;\r\ng.h=5"
    assert split_overrides(text) == ["a.b=1", "c.d=2", "e.f=[3, 4]", "g.h=5"]
    assert split_overrides(" \n ; ") == []


def test_programs_give_overrides_as_a_json_list_in_which_values_hold_anything():
    assert split_overrides('["a.b=x; y", "c.d=1\\n2"]') == ["a.b=x; y", "c.d=1\n2"]
    assert split_overrides("[]") == []
    for text in ("[training.seed=7]", '["a.b=1"', "[1, 2]"):
        with pytest.raises(UserError, match="JSON list of strings"):
            split_overrides(text)


# Unknown keys


def test_an_unknown_section_of_a_recipe_names_the_nearest():
    assert "'trainig' is not a known key, did you mean 'training'?" in problem({**MINIMAL, "trainig": {}})


def test_an_unknown_field_of_a_recipe_names_the_nearest():
    message = problem({**MINIMAL, "training": {"lerning_rate": 1}})
    assert "'training.lerning_rate' is not a known key, did you mean 'learning_rate'?" in message


@pytest.mark.parametrize(
    "text, nearest",
    [
        ("trainng.seed=1", "'training'"),
        ("training.sead=1", "'seed'"),
        ("registry.gate.min_improve=1", "'min_improvement'"),
        ("paralel.strategy=NO_SHARD", "'parallel'"),
        ("model.nme=x", "'name'"),
    ],
)
def test_an_unknown_key_of_an_override_names_the_nearest(text, nearest):
    assert f"did you mean {nearest}?" in problem(overrides=[text])


def test_a_key_that_is_near_to_nothing_gets_the_list_of_what_is_known():
    message = problem(overrides=["checkpoint.zzzzzz=1"])
    assert "did you mean" not in message
    assert (
        "(known: every_steps, every_s, asynchronous, timeout_s, keep, local_folder, keep_after_finish)" in message
    )


@pytest.mark.parametrize("recipe", [{**MINIMAL, 1: {}}, {"data": {"train": "b"}, "model": {"name": "a", True: 2}}])
def test_a_key_that_is_no_text_is_unknown_too(recipe):
    assert "is not a known key" in problem(recipe)


def test_what_is_missing_is_named():
    assert problem({"model": {}}).splitlines() == [
        "'model.name' is missing: set it in the recipe or as an override",
        "'data' is missing: set it in the recipe or as an override",
    ]


def test_all_problems_of_all_sources_are_listed_at_once():
    message = problem(
        {"model": {"nme": "a"}, "trainig": {}, "checkpoint": {"keep": 0}},
        ["modl.name=b", "training.sede=1", "no-equals", "parallel.num_nodes=-1", "registry.alias=[1"],
    )
    for part in (
        "'modl.name'",
        "'training.sede'",
        "'no-equals'",
        "'registry.alias'",
        "'parallel.num_nodes' is -1",
        "'model.nme'",
        "'model.name' is missing",
        "'data' is missing",
        "'trainig'",
        "'checkpoint.keep' is 0",
    ):
        assert part in message
    assert len(message.splitlines()) == 10


@pytest.mark.parametrize("section", [[1, 2], "text", 5, True])
@pytest.mark.parametrize("overrides", [[], ["training.seed=4"]])
def test_a_section_that_is_no_mapping_is_told_once(section, overrides):
    message = problem({**MINIMAL, "training": section}, overrides)
    assert message == f"'training' is {section!r}, not a section with fields"


# Recipe files


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_found_by_name_and_resolves(path):
    assert find_recipe(path.stem) == path
    assert isinstance(resolve(read_recipe(path)), RunConfig)


def test_there_are_shipped_recipes():
    assert SHIPPED != []


def test_a_recipe_file_is_found_by_its_path(tmp_path, monkeypatch):
    shutil.copy(SHIPPED[0], tmp_path / "mine.yml")
    monkeypatch.chdir(tmp_path)
    assert find_recipe("mine.yml") == Path("mine.yml")


@pytest.mark.parametrize("name", ["quickstrt", "", "no-such", "quickstrt.yaml", "/no/such/file.yaml", "a\0b", "."])
def test_a_missing_recipe_lists_what_ships(name):
    with pytest.raises(UserError) as caught:
        find_recipe(name)
    for path in SHIPPED:
        assert path.stem in str(caught.value)
    if "quickst" in name:
        assert "did you mean 'quickstart'?" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "model: [",
        "\tmodel: x",
        "a: b: c",
        "model: {name: a",
        b"model:\n  name: caf\xe9\n",
        b"\xff\xfem\x00",
        b"\x00",
        "d: 2024-13-01",
    ],
)
def test_a_file_that_is_not_yaml_is_refused_by_its_path_in_one_line(tmp_path, content):
    with pytest.raises(UserError, match="is not valid YAML") as caught:
        read_recipe(write(tmp_path / "broken.yaml", content))
    assert "broken.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "# nothing\n", "- a\n- b\n", "text", "7", "null"])
def test_a_file_without_sections_is_refused(tmp_path, content):
    with pytest.raises(UserError, match="holds no sections"):
        read_recipe(write(tmp_path / "recipe.yaml", content))


@pytest.mark.parametrize(
    "content, key",
    [("model: {name: a}\nmodel: {name: b}\n", "model"), ("training:\n  seed: 1\n  seed: 2\n", "seed")],
)
def test_a_key_that_stands_twice_is_refused(tmp_path, content, key):
    with pytest.raises(UserError, match=f"'{key}' stands twice"):
        read_recipe(write(tmp_path / "recipe.yaml", content))


def test_a_recipe_may_reuse_its_parts(tmp_path):
    content = "a: &part {x: 1}\nb: {<<: *part, y: 2}\nc: *part\n"
    assert read_recipe(write(tmp_path / "recipe.yaml", content))["b"] == {"x": 1, "y": 2}


def test_a_recipe_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_recipe(tmp_path / "gone.yaml")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_recipe(tmp_path)


def test_a_recipe_is_utf_8(tmp_path):
    path = write(tmp_path / "recipe.yaml", "model: {name: 日本/モデル}\ndata: {train: b}\n")
    assert resolve(read_recipe(path)).model.name == "日本/モデル"


# Printing


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["training.learning_rate=1e-7", "training.max_grad_norm=null", "training.adam_eps=1e-12"],
        ["model.name='123'", "model.revision='1e5'", "data.train='yes'", "registry.alias='n'"],
        ["model.name='null'", "data.train='2024-01-01'", "data.system_prompt='a: b # c'", "model.revision='0o7'"],
        ["model.name='ünï/日本 \\n'", 'data.train="line\\nbreak\\ttab"', "data.heldout='\"'"],
        ["parallel.strategy=HYBRID_SHARD", "parallel.procs_per_node=8", "parallel.shard_group_size=4"],
    ],
)
def test_a_printed_config_resolves_to_itself(tmp_path, overrides):
    config = resolve(MINIMAL, overrides)
    assert resolve(read_recipe(write(tmp_path / "printed.yaml", to_yaml(config)))) == config


@pytest.mark.parametrize(
    "text",
    ["model: {name: a/b}", '{"model": {"name": "a/b"}}', "model:\n  name: a/b\n", "  model: {name: a/b}  "],
)
def test_a_recipe_may_be_given_as_its_own_text_also_on_one_line(text):
    assert load_recipe(text) == {"model": {"name": "a/b"}}


def test_a_key_of_another_section_is_found_there():
    assert "did you mean 'training.learning_rate'?" in problem(overrides=["data.learning_rate=2"])
