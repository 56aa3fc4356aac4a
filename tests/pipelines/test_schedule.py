"""Schedules: cron expressions, the macros of the firing's time, and recurring runs kept by name."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from pipelines.kubeflow import schedule as schedules
from pipelines.kubeflow import submit as submission
from pipelines.kubeflow.client import connect
from pipelines.kubeflow.commands import describe_firings
from pipelines.kubeflow.cron import parse_cron
from pipelines.kubeflow.runs import find_run
from pipelines.kubeflow.schedule import Schedule, Trigger, delete, list_schedules, parse_every, set_paused, upsert
from pipelines.kubeflow.schedule_time import to_macros, uses_schedule_time
from tests.doubles.kubeflow import FakeKubeflow
from tests.doubles.kubeflow_macros import cron_error, expand
from training.errors import UserError
from training.run_folder import run_name_from_job

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
GRAPH = """\
components: {comp-a: {executorLabel: exec-a}}
deploymentSpec: {executors: {exec-a: {container: {image: python}}}}
pipelineInfo: {name: shardline-finetune}
root:
  dag: {tasks: {a: {componentRef: {name: comp-a}, taskInfo: {name: a}}}}
  inputDefinitions:
    parameters:
      overrides: {parameterType: STRING, defaultValue: ""}
      recipe: {parameterType: STRING}
      run: {parameterType: STRING, defaultValue: ""}
      skip_unchanged: {parameterType: BOOLEAN, defaultValue: false}
      store_claim: {parameterType: STRING, defaultValue: ""}
schemaVersion: 2.1.0
sdkVersion: kfp-2.17.3
"""


def firings(text, start, zone=UTC, count=3):
    return [moment.astimezone(zone) for moment in Trigger(cron=parse_cron(text)).next(count, zone, start)]


def shown(text, start, zone=UTC, count=3):
    return [f"{moment:%a %d.%m. %H:%M:%S}" for moment in firings(text, start, zone, count)]


def test_five_fields_are_the_usual_ones_and_get_their_seconds():
    cron = parse_cron("30 2 * * *")
    assert cron.text == "0 30 2 * * *" and parse_cron("0 30 2 * * *") == cron
    assert shown("30 2 * * *", NOON, count=2) == ["Wed 02.12. 02:30:00", "Thu 03.12. 02:30:00"]
    assert shown("15 0 12 * * ?", NOON, count=1) == ["Tue 01.12. 12:00:15"]
    assert parse_cron("@daily").text == "0 0 0 * * *"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/20 22-23 * * mon-FRI", ["Tue 01.12. 22:00:00", "Tue 01.12. 22:20:00", "Tue 01.12. 22:40:00"]),
        ("0 6 31 * *", ["Thu 31.12. 06:00:00", "Sun 31.01. 06:00:00", "Wed 31.03. 06:00:00"]),
        ("0 0 29 feb *", ["Tue 29.02. 00:00:00"]),
        ("0 12,13 * * 0", ["Sun 06.12. 12:00:00", "Sun 06.12. 13:00:00", "Sun 13.12. 12:00:00"]),
        # Either day, if both are named; both, if one begins with a star: as the server's parser has it.
        ("0 0 5 * 3", ["Wed 02.12. 00:00:00", "Sat 05.12. 00:00:00", "Wed 09.12. 00:00:00"]),
        ("0 0 */10 * 5", ["Fri 11.12. 00:00:00", "Fri 01.01. 00:00:00", "Fri 01.01. 00:00:00"]),
        ("50/5 7 * * *", ["Wed 02.12. 07:50:00", "Wed 02.12. 07:55:00", "Thu 03.12. 07:50:00"]),
    ],
)
def test_firings(text, expected):
    found = shown(text, NOON, count=len(expected))
    if text == "0 0 */10 * 5":
        found, expected = found[:2], expected[:2]
    assert found == expected


def test_an_hour_that_the_clock_skips_is_skipped_and_one_that_it_repeats_comes_twice():
    spring = firings("30 2 * * *", datetime(2027, 3, 26, 12, tzinfo=UTC), BERLIN)
    assert [str(moment) for moment in spring] == [
        "2027-03-27 02:30:00+01:00",
        "2027-03-29 02:30:00+02:00",
        "2027-03-30 02:30:00+02:00",
    ]
    autumn = firings("30 2 * * *", datetime(2027, 10, 30, 12, tzinfo=UTC), BERLIN)
    assert [str(moment) for moment in autumn] == [
        "2027-10-31 02:30:00+02:00",
        "2027-10-31 02:30:00+01:00",
        "2027-11-01 02:30:00+01:00",
    ]


def test_a_midnight_that_the_clock_skips_does_not_hold_up_the_search():
    santiago = ZoneInfo("America/Santiago")  # at midnight of 6 September 2026 it is one o'clock
    found = firings("15 * * * *", datetime(2026, 9, 6, 3, 50, tzinfo=UTC), santiago, count=2)
    assert [str(moment) for moment in found] == ["2026-09-06 01:15:00-03:00", "2026-09-06 02:15:00-03:00"]
    assert str(firings("0 3 6 9 *", NOON, santiago, 1)[0]) == "2027-09-06 03:00:00-03:00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 0 1 1 * 2027", "has 7 fields"),
        ("60 * * * *", "'60' of the minute is outside of 0 to 59"),
        ("0 24 * * *", "'24' of the hour is outside of 0 to 23"),
        ("0 0 0 * *", "'0' of the day of month is outside of 1 to 31"),
        ("0 0 * * 7", "'7' of the day of week is outside of 0 to 6"),
        ("0 0 * * fri-mon", "the range 'fri-mon' of the day of week ends before it begins"),
        ("*/0 * * * *", "is 0, and has to be at least 1"),
        ("0 0 L * *", "'L' of the day of month is not a number"),
        ("0 0 * sept *", "or a name from jan, feb"),
        ("-5 * * * *", "is not a number"),
        ("@every 6h", "has 2 fields"),
        ("0 0 30 2 *", "never fires"),
    ],
)
def test_what_the_server_would_refuse_is_refused_here(text, said):
    with pytest.raises(UserError) as caught:
        parse_cron(text)
    assert said in str(caught.value) and f"'{text}'" in str(caught.value)
    # But for what is only senseless, or means something else there.
    if text not in ("* * * *", "@every 6h", "0 0 30 2 *"):
        assert cron_error(text if len(text.split()) != 5 else f"0 {text}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("6h", 21600), ("90m", 5400), ("1d", 86400), ("1h 30m", 5400), ("60s", 60)]
)
def test_intervals(text, seconds):
    assert parse_every(text) == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "1.5h", "-6h", "6 weeks", "59s", "0h"])
def test_intervals_that_cannot_be(text):
    with pytest.raises(UserError, match=rf"the interval '{text}'"):
        parse_every(text)


def test_firings_are_told_in_both_zones_also_over_a_change_of_the_clock():
    lines = describe_firings(
        Trigger(cron=parse_cron("0 12 * * *")), ZoneInfo("UTC"), datetime(2027, 3, 26, 13, tzinfo=UTC), BERLIN
    )
    assert lines == [
        "Next runs:",
        "  Sat 2027-03-27 12:00:00 UTC+00:00 UTC  =  Sat 2027-03-27 13:00:00 UTC+01:00 here",
        "  Sun 2027-03-28 12:00:00 UTC+00:00 UTC  =  Sun 2027-03-28 14:00:00 UTC+02:00 here",
        "  Mon 2027-03-29 12:00:00 UTC+00:00 UTC  =  Mon 2027-03-29 14:00:00 UTC+02:00 here",
    ]
    same = describe_firings(Trigger(every_s=3600), ZoneInfo("Europe/Paris"), NOON, BERLIN)
    assert same[1] == "  Tue 2026-12-01 14:00:00 UTC+01:00", "both zones are the same"
    lines = describe_firings(Trigger(every_s=3600), ZoneInfo("Asia/Kolkata"), NOON, BERLIN)
    assert lines[:2] == [
        "Next runs, about:",
        "  Tue 2026-12-01 18:30:00 UTC+05:30 Asia/Kolkata  =  Tue 2026-12-01 14:00:00 UTC+01:00 here",
    ]


# The firing's time in settings.


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%Y%m%d", "%Y/%m/%d/%H", "%Y-%m-%dT%H:%M:%S", "%y%j", "%d %B %Y", "%a_%b", "%A.%I%p", "%H_%Y"],
)
def test_a_format_becomes_the_servers_macro_and_that_the_time(form):
    text = f"/data/{{scheduled:{form}}}.jsonl"
    assert uses_schedule_time(text)
    moment = datetime(2026, 3, 7, 14, 5, 9, tzinfo=UTC)
    macro = to_macros(text)
    assert macro.startswith("/data/[[ScheduledTime.") and "{" not in macro
    filled = expand(macro, scheduled=moment.astimezone(BERLIN), now=NOON, index=3, run_id="x")
    assert filled == f"/data/{moment.strftime(form)}.jsonl"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{scheduled}", "has no format"),
        ("{scheduled:}", "has no format"),
        ("{scheduled-1d:%Y}", "'{scheduled-1d:%Y}' shifts the time, which Kubeflow Pipelines cannot do"),
        ("{scheduled:%Y-%U}", "'%U' in '{scheduled:%Y-%U}' is not known: use %Y"),
        ("{scheduled:%}", "'%' in"),
        ("{scheduled:day1}", "'d' in '{scheduled:day1}' could be taken"),
        ("{scheduled:%Y-1}", "'1' in"),
    ],
)
def test_formats_that_the_macro_cannot_express(text, said):
    with pytest.raises(UserError) as caught:
        to_macros(text)
    assert said in str(caught.value)


def test_other_braces_are_left_alone():
    text = '{"model": {"name": "x"}, "scheduled": {"a": 1}}'
    assert to_macros(text) == text and not uses_schedule_time(text)


# Recurring runs.


@pytest.fixture
def double(tmp_path, monkeypatch):
    graph = tmp_path / "graph.yaml"
    graph.write_text(GRAPH)
    monkeypatch.setattr(submission, "GRAPH", graph)
    with FakeKubeflow(tmp_path / "kubeflow") as double:
        yield double


@pytest.fixture
def kubeflow(double):
    return connect(double.url)


@pytest.fixture
def wanted(kubeflow):
    graph = submission.upload_graph(kubeflow)
    experiment = submission.experiment_id(kubeflow, "e")

    def make(name="nightly", cron="0 2 * * *", every=None, latest=False, **parameters):
        trigger = Trigger(every_s=every) if every else Trigger(cron=parse_cron(cron))
        version = None if latest else graph.version_id
        arguments = {"recipe": "quickstart", "skip_unchanged": True, **parameters}
        return Schedule(name, trigger, arguments, graph.pipeline_id, version, experiment)

    return make


def switches(double):
    """What was asked for about recurring runs, without looks."""
    return [
        request.method + " " + request.path.rpartition("recurringruns")[2].partition(":")[2]
        for request in double.requests
        if "recurringruns" in request.path and request.method != "GET"
    ]


def test_a_schedule_is_made_and_the_same_again_changes_nothing(double, kubeflow, wanted):
    assert upsert(kubeflow, wanted()).outcome == "created"
    (made,) = double.recurring_runs.values()
    assert made["trigger"] == {"cron_schedule": {"cron": "0 0 2 * * *"}}
    assert made["mode"] == "ENABLE" and made["no_catchup"] is True and made["max_concurrency"] == "1"
    assert "run" not in made["runtime_config"]["parameters"]
    before = switches(double)
    for _ in range(2):
        assert upsert(kubeflow, wanted()).outcome == "unchanged"
    assert switches(double) == before and list(double.recurring_runs.values()) == [made]


@pytest.mark.parametrize(
    "change",
    [{"cron": "0 3 * * *"}, {"every": 3600}, {"latest": True}, {"skip_unchanged": False}, {"store_claim": "c"}],
)
def test_a_change_replaces_it_with_never_two_that_are_enabled(double, kubeflow, wanted, change):
    upsert(kubeflow, wanted())
    (old,) = double.recurring_runs
    done = len(switches(double))
    assert upsert(kubeflow, wanted(**change)) == schedules.Upserted("replaced", False, 0)
    (new,) = double.recurring_runs.values()
    assert new["recurring_run_id"] != old and new["mode"] == "ENABLE"
    assert switches(double)[done:] == ["POST ", "POST disable", "POST enable", "DELETE "]
    assert upsert(kubeflow, wanted(**change)).outcome == "unchanged"


def test_schedules_of_other_names_are_left_alone(double, kubeflow, wanted):
    upsert(kubeflow, wanted("one"))
    upsert(kubeflow, wanted("two"))
    upsert(kubeflow, wanted("one", cron="0 5 * * *"))
    assert [one["display_name"] for one in double.recurring_runs.values()] == ["two", "one"]


def test_a_schedule_of_which_a_run_goes_on_is_not_deleted_but_paused(double, kubeflow, wanted):
    upsert(kubeflow, wanted())
    (old,) = double.recurring_runs
    (run,) = double.fire(old, NOON)
    double.set_state(run["run_id"], "RUNNING")
    assert upsert(kubeflow, wanted(cron="0 3 * * *")) == schedules.Upserted("replaced", False, 1)
    assert double.runs[run["run_id"]]["state"] == "RUNNING"
    assert double.recurring_runs[old]["mode"] == "DISABLE"
    # The one that counts is the new one, and the old one goes when its run has ended.
    assert upsert(kubeflow, wanted(cron="0 3 * * *")) == schedules.Upserted("unchanged", False, 1)
    double.set_state(run["run_id"], "SUCCEEDED")
    assert upsert(kubeflow, wanted(cron="0 3 * * *")) == schedules.Upserted("unchanged", False, 0)
    assert old not in double.recurring_runs and len(double.recurring_runs) == 1


def test_a_firing_amid_the_change_happens_once(double, kubeflow, wanted, monkeypatch):
    upsert(kubeflow, wanted())
    (old,) = double.recurring_runs
    moment = datetime.now(UTC) + timedelta(seconds=5)
    pause = schedules._set_enabled

    def fire_and_pause(kubeflow, one, *, enabled):
        if not enabled and not double.runs:
            double.fire(old, moment)
        pause(kubeflow, one, enabled=enabled)

    monkeypatch.setattr(schedules, "_set_enabled", fire_and_pause)
    first_new = []
    create = schedules._create
    monkeypatch.setattr(schedules, "_create", lambda *args: first_new.append(create(*args)) or first_new[-1])
    assert upsert(kubeflow, wanted(cron="0 3 * * *")).outcome == "replaced"
    # The one that was made before the firing would repeat it.
    assert len(first_new) == 2 and first_new[0].recurring_run_id not in double.recurring_runs
    assert double.recurring_runs[first_new[1].recurring_run_id]["mode"] == "ENABLE"
    assert len(double.runs) == 1


def test_a_pause_outlives_a_change_and_the_runs_go_on_after_it(double, kubeflow, wanted):
    upsert(kubeflow, wanted())
    set_paused(kubeflow, "nightly", paused=True)
    assert upsert(kubeflow, wanted()) == schedules.Upserted("unchanged", True, 0)
    assert upsert(kubeflow, wanted(cron="0 3 * * *")) == schedules.Upserted("replaced", True, 0)
    (key,) = double.recurring_runs
    assert double.fire(key, NOON, NOON + timedelta(days=1)) == []
    set_paused(kubeflow, "nightly", paused=False)
    # Of what was missed, the last is made up for.
    (run,) = double.fire(key)
    assert run["scheduled_at"] == "2026-12-02T12:00:00Z"


def test_a_name_that_there_is_not(kubeflow):
    for function in (delete, lambda *args: set_paused(*args, paused=True)):
        with pytest.raises(UserError, match=r"there is no schedule 'weekly' at http.*`shardline schedule` lists"):
            function(kubeflow, "weekly")


def test_deleting_leaves_the_runs(double, kubeflow, wanted):
    upsert(kubeflow, wanted())
    (key,) = double.recurring_runs
    (run,) = double.fire(key, NOON)
    assert delete(kubeflow, "nightly") == 1
    assert double.fire(key, NOON + timedelta(days=1)) == [] and double.runs[run["run_id"]]["state"] == "PENDING"
    double.set_state(run["run_id"], "SUCCEEDED")
    assert delete(kubeflow, "nightly") == 0
    assert double.recurring_runs == {} and run["run_id"] in double.runs
    assert {r.query.get("propagation_policy") for r in double.requests if r.method == "DELETE"} == {"ORPHAN"}


def test_the_list_tells_the_next_firing_in_the_servers_zone(double, kubeflow, wanted):
    double.clock = lambda: datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
    upsert(kubeflow, wanted())
    upsert(kubeflow, wanted("hourly", every=3600))
    upsert(kubeflow, wanted("paused"))
    set_paused(kubeflow, "paused", paused=True)
    pipeline = submission.find_pipeline(kubeflow)
    hourly, nightly, paused = list_schedules(kubeflow, pipeline, BERLIN, NOON)
    assert (hourly.name, hourly.trigger) == ("hourly", "every 3600 s")
    assert hourly.next == datetime(2026, 12, 1, 12, 30, tzinfo=UTC)
    assert nightly.trigger == "0 0 2 * * *" and nightly.next == datetime(2026, 12, 2, 1, tzinfo=UTC)
    assert paused.paused and paused.next is None
    assert list_schedules(kubeflow, "another", BERLIN, NOON) == []


def test_more_than_a_page_of_schedules(double, kubeflow, wanted):
    upsert(kubeflow, wanted())
    (one,) = double.recurring_runs.values()
    for number in range(130):
        key = f"copy-{number}"
        double.recurring_runs[key] = {**one, "recurring_run_id": key, "display_name": f"s{number:03}"}
    found = list_schedules(kubeflow, submission.find_pipeline(kubeflow), UTC, NOON)
    assert len(found) == 131 and all(a.name < b.name for a, b in pairwise(found))


# What the server makes of it.


def test_a_fixed_version_stays_and_the_newest_moves(double, kubeflow, wanted):
    upsert(kubeflow, wanted("fixed"))
    upsert(kubeflow, wanted("moving", latest=True))
    fixed, moving = double.recurring_runs
    submission.GRAPH.write_text(GRAPH.replace("image: python", "image: newer"))
    newer = submission.upload_graph(kubeflow).version_id
    used = [
        double.fire(key, NOON)[0]["pipeline_version_reference"]["pipeline_version_id"] for key in (fixed, moving)
    ]
    assert used[1] == newer != used[0]


def test_macros_are_filled_in_for_the_newest_version(double, kubeflow, wanted):
    overrides = to_macros('["data.train=/d/{scheduled:%Y-%m-%d}.jsonl"]')
    upsert(kubeflow, wanted("moving", latest=True, overrides=overrides))
    (key,) = double.recurring_runs
    (run,) = double.fire(key, datetime(2026, 12, 3, 23, 30, tzinfo=ZoneInfo("America/New_York")))
    assert run["runtime_config"]["parameters"] == {
        "recipe": "quickstart",
        "skip_unchanged": True,
        "overrides": '["data.train=/d/2026-12-04.jsonl"]',
    }


def test_macros_are_not_filled_in_for_a_fixed_version(double, kubeflow, wanted):
    text = to_macros("{scheduled:%Y}")
    upsert(kubeflow, wanted(overrides=text))
    (key,) = double.recurring_runs
    (run,) = double.fire(key, NOON)
    assert run["runtime_config"]["parameters"]["overrides"] == text, "which is why the command asks for --latest"


def test_one_run_at_a_time_and_each_named_after_its_job(double, kubeflow, wanted):
    upsert(kubeflow, wanted("Every Night of the Week at Two"))
    (key,) = double.recurring_runs
    (first,) = double.fire(key, NOON)
    assert double.fire(key, NOON + timedelta(days=1)) == []
    double.set_state(first["run_id"], "SUCCEEDED")
    (second,) = double.fire(key)
    assert first["display_name"] != second["display_name"]
    found = find_run(kubeflow, run_name_from_job(second["display_name"]))
    assert (found.run_id, found.schedule) == (second["run_id"], key)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "-x", "漢字", "x" * 101, "a "])
def test_names_that_no_schedule_can_have(double, kubeflow, wanted, name):
    with pytest.raises(UserError, match=r"the schedule's name .* is not valid: give at most 100"):
        upsert(kubeflow, wanted(name))
    assert not double.recurring_runs


def test_an_interval_of_ages_is_refused():
    with pytest.raises(UserError, match="too long: give at most 3650d"):
        parse_every("99999999999d")
    assert parse_every("3650d") == 3650 * 86400


def test_a_step_that_is_never_taken_is_refused():
    with pytest.raises(UserError, match=r"the step in '\*/90' of the minute is above 59"):
        parse_cron("*/90 * * * *")


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        ({"cron_schedule": {"cron": "0 0 0 30 2 *"}}, "0 0 0 30 2 *"),
        ({"cron_schedule": {"cron": "0 0 0 * * 8"}}, "0 0 0 * * 8"),
        ({"cron_schedule": {}}, "no times"),
        ({"periodic_schedule": {"interval_second": "0"}}, "no times"),
        ({}, "no times"),
    ],
)
def test_what_others_made_of_a_schedule_does_not_keep_the_rest_from_being_listed(
    double, kubeflow, wanted, trigger, text
):
    upsert(kubeflow, wanted())
    upsert(kubeflow, wanted("odd"))
    (odd,) = [one for one in double.recurring_runs.values() if one["display_name"] == "odd"]
    odd["trigger"] = trigger
    graph = submission.upload_graph(kubeflow)
    nightly, listed = list_schedules(kubeflow, graph.pipeline_id, UTC, NOON)
    assert nightly.next is not None
    assert (listed.trigger, listed.next) == (text, None)
    assert upsert(kubeflow, wanted("odd")).outcome == "replaced"


def test_of_two_that_change_it_at_a_time_one_counts_and_the_other_is_told(double, kubeflow, wanted, monkeypatch):
    upsert(kubeflow, wanted())
    create = schedules._create

    def create_after_another(*arguments):
        made = create(*arguments)
        monkeypatch.setattr(schedules, "_create", create)
        upsert(kubeflow, wanted(cron="0 4 * * *"))
        return made

    monkeypatch.setattr(schedules, "_create", create_after_another)
    with pytest.raises(UserError, match="somebody else changed the schedule 'nightly' at the same time"):
        upsert(kubeflow, wanted(cron="0 3 * * *"))
    (left,) = double.recurring_runs.values()
    assert left["mode"] == "ENABLE" and left["trigger"]["cron_schedule"]["cron"] == "0 0 4 * * *"


@pytest.mark.parametrize("later", [True, False])
def test_of_two_that_are_enabled_only_the_newest_stays(double, kubeflow, wanted, monkeypatch, later):
    upsert(kubeflow, wanted(cron="0 3 * * *"))
    moment = datetime.now(UTC) + timedelta(hours=1 if later else -1)
    double.clock = lambda: moment
    named, looks = schedules._named, []

    def look(*arguments):
        looks.append(arguments)
        # The first look was before the other's was made.
        return named(*arguments) if len(looks) > 1 else []

    monkeypatch.setattr(schedules, "_named", look)
    if later:
        assert upsert(kubeflow, wanted(cron="0 4 * * *")).outcome == "created"
    else:
        with pytest.raises(UserError, match="theirs counts"):
            upsert(kubeflow, wanted(cron="0 4 * * *"))
    (left,) = double.recurring_runs.values()
    assert left["mode"] == "ENABLE"
    assert left["trigger"]["cron_schedule"]["cron"] == ("0 0 4 * * *" if later else "0 0 3 * * *")


def test_what_somebody_else_deleted_meanwhile_is_no_failure(double, kubeflow, wanted, monkeypatch):
    upsert(kubeflow, wanted())
    known = schedules._known

    def know_and_lose(*arguments):
        found = known(*arguments)
        double.recurring_runs.clear()
        return found

    monkeypatch.setattr(schedules, "_known", know_and_lose)
    assert delete(kubeflow, "nightly") == 0
