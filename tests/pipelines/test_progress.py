import io
import itertools

import pytest
from rich.console import Console

from pipelines.progress import STEPS, ProgressView
from training.events import Evaluation, Incident, Note, Span, TrainStep

HOSTILE = [
    "[red]x[/red]",
    "[/]",
    "[/dim]",
    "[",
    "a\\",
    "a\\\\\\",
    "[link=file:///etc/passwd]x[/link]",
    "[@click=quit]x",
]


def plain(width=200):
    return Console(file=io.StringIO(), width=width)


def terminal():
    return Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")


def start(step):
    return Span(name=step, phase="start", source=step)


def end(step, **fields):
    return Span(name=step, phase="end", source=step, **{"seconds": 1.25, **fields})


def train_step(step, **fields):
    defaults = {
        "num_steps": 10,
        "loss": 2.5,
        "grad_norm": 0.3,
        "learning_rate": 1e-5,
        "num_tokens": 4096,
        "num_supervised": 1024,
        "seconds": 0.5,
        "memory_gib": 1.25,
        "source": "rank-0",
    }
    return TrainStep(step=step, **{**defaults, **fields})


def show(events, console=None, **options):
    console = console or plain()
    with ProgressView(console, **options) as view:
        for event in events:
            view.show(event)
    return view, console.file.getvalue()


def test_a_run_is_told_line_by_line_where_there_is_no_terminal():
    view, output = show(
        [
            start("preflight"),
            Note(text="model: org/model", source="preflight"),
            end("preflight", detail="org/model on data"),
            start("train"),
            Span(name="load", phase="start", source="rank-0"),
            train_step(1),
            train_step(10, loss=1.23456, num_tokens=20000, seconds=0.25),
            Evaluation(name="tuned", loss=1.0, num_supervised=3),
            Note(text="careful", level="warning"),
            end("train", seconds=62, detail="10 steps, loss 1.235"),
        ]
    )
    assert output.splitlines() == [
        "▸ preflight: check the configuration, model and data",
        "             model: org/model",
        "✓ preflight            1.2 s   org/model on data",
        "▸ train: fine-tune",
        "    step 1/10  loss 2.500  8,192 tokens/s  1.2 GiB a rank  4 s left",
        "    step 10/10  loss 1.235  80,000 tokens/s  1.2 GiB a rank  0 s left",
        "             careful",
        "✓ train               62.0 s   10 steps, loss 1.235",
    ]
    assert view.told_failure is False


MEASURED = {
    "worst_rank_loss": 3.0,
    "num_positions": 5120,
    "flops": 1e14,
    "peak_tflops": 400.0,
}


def test_all_that_a_trainer_measures_is_told():
    _, output = show(
        [
            start("train"),
            train_step(1, **MEASURED),
            Evaluation(name="step", step=1, loss=2.75, num_supervised=9),
            train_step(2, **{**MEASURED, "worst_rank_loss": 2.5001}),
        ]
    )
    facts = "8,192 tokens/s  80 % filled  MFU 50 %  1.2 GiB a rank  4 s left"
    assert output.splitlines()[1:] == [
        f"    step 1/10  loss 2.500 (worst rank 3.000)  {facts}",
        "    held-out loss 2.750 after step 1",
        f"    step 2/10  loss 2.500  {facts}",
    ]


def test_a_terminal_shows_the_newest_step_and_held_out_loss():
    console = terminal()
    with ProgressView(console) as view:
        view.show(start("train"))
        view.show(train_step(2, **MEASURED))
        view.show(Evaluation(name="step", step=2, loss=2.75, num_supervised=9))
        assert view._live is not None
        lines = [line.rstrip() for line in plain_lines(console, view._live.renderable)]
        assert lines[1].endswith("2/10 loss 2.500 (worst rank 3.000)")
        assert lines[2:] == [
            "            8,192 tokens/s  80 % filled  MFU 50 %  1.2 GiB a rank  4 s left",
            "            held-out loss 2.750 after step 2",
        ]


def plain_lines(console, renderable):
    return ["".join(part.text for part in line) for line in console.render_lines(renderable)]


def test_a_step_that_failed_is_told_with_its_whole_error():
    view, output = show([start("train"), end("train", ok=False, detail="rank 3 ended\nTheirError: [here]")])
    assert output.splitlines()[1:] == ["✗ train                1.2 s", "  rank 3 ended", "TheirError: [here]"]
    assert view.told_failure is True


def test_a_step_that_was_stopped_has_not_failed():
    detail = "interrupted; a run of the same name goes on from what was saved"
    _, output = show([start("train"), end("train", ok=False, detail=detail)])
    assert output.splitlines()[1:] == ["■ train                1.2 s", f"  {detail}"]


def test_an_attempt_that_ended_is_told():
    _, output = show([Incident(what="signal", rank=1, exit_code=137, attempt=2)])
    assert output.strip() == "attempt 2: signal"


def test_a_long_line_is_not_cut():
    _, output = show([Note(text="word " * 100)], plain(width=40))
    assert output.count("word") == 100
    assert output.count("\n") == 1


def test_the_quiet_view_tells_only_what_went_wrong():
    events = [start("preflight"), Note(text="x"), end("preflight"), train_step(1), Incident(what="signal")]
    view, output = show(events, quiet=True)
    assert (output, view.told_failure) == ("", False)
    view, output = show([*events, end("train", ok=False, detail="broken")], quiet=True)
    assert output.splitlines() == ["✗ train                1.2 s", "  broken"]
    assert view.told_failure is True


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_others_is_shown_as_it_is_and_never_taken_for_markup(text):
    _, output = show(
        [
            Note(text=text),
            Note(text=text, level="error"),
            Incident(what=text),
            end("train", detail=text),
            end("train", ok=False, detail=text),
        ]
    )
    lines = output.splitlines()
    assert [line.strip() for line in lines[:2]] == [text, text]
    assert lines[2].endswith(f": {text}")
    assert lines[3].endswith(f"   {text}")
    assert lines[5] == f"  {text}"


def test_spans_that_are_no_step_are_not_told():
    _, output = show(
        [
            Span(name="train", phase="start", source="rank-0"),
            Span(name="[red]", phase="start", source="[red]"),
            Span(name="save", phase="end", source="rank-0", ok=False),
        ]
    )
    assert output == ""


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_shown(number):
    _, output = show([train_step(1, loss=number)])
    assert f"loss {number}" in output


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_shows_any_order_of_events(quiet):
    view = ProgressView(terminal(), quiet=quiet)
    kinds = [
        start("train"),
        train_step(3),
        end("train"),
        end("train", ok=False, detail="[/]"),
        Note(text="[/dim]\\"),
        Incident(what="[red]"),
        Evaluation(name="base", loss=1.0, num_supervised=1),
        Evaluation(name="step", step=2, loss=1.0, num_supervised=1),
    ]
    with view:
        for events in itertools.permutations(kinds, 3):
            for event in events:
                view.show(event)
    assert view.told_failure is True


def test_a_terminal_keeps_the_lines_of_finished_steps():
    events = [event for step in STEPS for event in (start(step), end(step, detail=f"did {step}"))]
    _, output = show(events, terminal())
    for step in STEPS:
        assert f"did {step}" in output


def test_the_live_display_ends_when_showing_fails():
    console = terminal()
    with pytest.raises(RuntimeError, match="elsewhere"), ProgressView(console) as view:
        view.show(start("train"))
        raise RuntimeError("elsewhere")
    assert view._live is not None
    assert not view._live.is_started
