"""The figures' lines, and the command's exit code."""

import importlib
import types
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.figure import Figure


def test_a_line_has_name_value_spread_goal_and_verdict():
    figure = Figure("sft.speed", [2.5, 1.9, 2.2], at_least=2.0)
    assert str(figure).split() == ["sft.speed", "2.2", "(1.9..2.5)", ">=2", "ok"]


@pytest.mark.parametrize(
    ("figure", "goal", "verdict"),
    [
        (Figure("a", [0.5], at_most=0.5), "<=0.5", "ok"),
        (Figure("a", [0.51], at_most=0.5), "<=0.5", "short"),
        (Figure("a", [1.9], at_least=2.0), ">=2", "short"),
        (Figure("a", [float("nan")], at_least=2.0), ">=2", "short"),
        (Figure("a", [float("nan")], at_most=2.0), "<=2", "short"),
        (Figure("a", [7.0]), "-", "-"),
    ],
)
def test_a_figure_is_held_against_its_goal(figure, goal, verdict):
    assert str(figure).split()[-2:] == [goal, verdict]
    assert figure.falls_short == (verdict == "short")


@pytest.mark.parametrize(("value", "code"), [(3.0, 0), (1.0, 1)])
def test_the_exit_code_says_whether_a_figure_falls_short(monkeypatch, capsys, value, code):
    seen = []

    def measure(options):
        seen.append(options)
        return [Figure("load.a", [value], at_least=2.0), Figure("load.b", [1.0])]

    monkeypatch.setattr(importlib, "import_module", lambda name: types.SimpleNamespace(measure=measure))
    arguments = ["load", "--precision", "bf16", "--repetitions", "2", "--store", "somewhere"]
    assert main(arguments) == code
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["load.a", "load.b"]
    assert (seen[0].precision, seen[0].repetitions) == ("bf16", 2)
    assert seen[0].store == Path("somewhere").absolute()


def test_without_names_all_run(monkeypatch, capsys):
    ran = []

    def load(name):
        ran.append(name)
        return types.SimpleNamespace(measure=lambda options: [])

    monkeypatch.setattr(importlib, "import_module", load)
    assert main([]) == 0
    names = ("sft", "matmul", "overhead", "guard", "checkpoint", "load", "launch", "logs")
    names += ("tokenize", "tokenize_memory", "packed_reading")
    assert ran == [f"benchmarks.{name}" for name in names]


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        main(["sft", "fast"])
    assert error.value.code == 2
    assert "there is no benchmark fast: choose from sft, matmul" in capsys.readouterr().err


def test_too_few_steps_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["sft", "--steps", "2"])
    assert "more than the 2 that are not counted" in capsys.readouterr().err


def test_help_says_what_is_measured(capsys):
    with pytest.raises(SystemExit) as error:
        main(["--help"])
    assert error.value.code == 0
    shown = capsys.readouterr().out
    assert "SFTTrainer" in shown and "benchmarks.gpu" in shown
