"""A run's metrics, as Prometheus reads them."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.runs import free_port
from tests.training.ledger.lives import START, Life, train_step
from training.config import RunConfig
from training.events import Alert, Evaluation, EventWriter, Incident, Note, Span, TrainStep, read_events
from training.exporter import RunCollector, serve_metrics
from training.ledger import BUCKETS
from training.run_folder import RunFolder

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="Prometheus is not installed (Debian: apt-get install prometheus)",
)

STEP = TrainStep(
    step=7,
    num_steps=10,
    loss=2.5,
    worst_rank_loss=3.5,
    grad_norm=0.75,
    learning_rate=1e-4,
    num_tokens=8000,
    num_supervised=2000,
    num_positions=10_000,
    num_devices=4,
    seconds=2.0,
    data_s=0.25,
    compute_s=1.0,
    optimizer_s=0.125,
    checkpoint_s=0.375,
    evaluation_s=0.125,
    flops=1.2e15,
    peak_tflops=400.0,
    memory_gib=1.5,
)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    folder.create(
        RunConfig.model_validate(
            {"model": {"name": "m"}, "data": {"train": "d"}, "cluster": {"metrics_port": free_port()}}
        )
    )
    return folder


def url(folder):
    return f"http://127.0.0.1:{folder.config().cluster.metrics_port}/metrics"


def scrape(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


def samples(text):
    """Each sample's value by its name and its labels other than the run's name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == "a-run"
            found[sample.name.removeprefix("shardline_"), *labels.values()] = sample.value
    return found


def test_where_a_run_stands(folder):
    leader = EventWriter(folder.events, "rank-0", attempt=2)
    with serve_metrics(folder, attempt=2):
        before = samples(scrape(url(folder)))
        EventWriter(folder.events, "train").write(Incident(attempt=1, what="signal"))
        for writer in (leader, EventWriter(folder.events, "rank-1", attempt=2)):
            writer.write(Span(name="checkpoint", phase="start"))
            writer.write(Span(name="checkpoint", phase="end", seconds=0.5))
            writer.write(Span(name="checkpoint_write", phase="end", seconds=3.0))
            # Of the same one, on the nodes' own disks.
            writer.write(Span(name="checkpoint_write", phase="end", seconds=0.1, detail="local"))
            writer.write(Span(name="checkpoint", phase="end", ok=False, seconds=99.0))
        leader.write(Evaluation(name="step", step=6, loss=2.75, num_supervised=9))
        leader.write(STEP)
        after = samples(scrape(url(folder)))
    assert before == {("attempts_total",): 0, ("checkpoints_total",): 0}
    after = {key: value for key, value in after.items() if key[0] not in OF_LIFE}
    assert after == pytest.approx(
        {
            ("train_step",): 7,
            ("train_num_steps",): 10,
            ("train_loss",): 2.5,
            ("train_worst_rank_loss",): 3.5,
            ("train_grad_norm",): 0.75,
            ("train_learning_rate",): 1e-4,
            ("train_tokens_per_second",): 4000,
            ("train_tokens_per_second_per_device",): 1000,
            ("train_supervised_tokens_per_second",): 1000,
            ("train_fill_ratio",): 0.8,
            ("train_tflops_per_device",): 200,
            ("train_mfu",): 0.5,
            ("train_memory_bytes",): 1.5 * 2**30,
            ("train_seconds_left",): 6,
            ("train_step_seconds", "data"): 0.25,
            ("train_step_seconds", "compute"): 1.0,
            ("train_step_seconds", "optimizer"): 0.125,
            ("train_step_seconds", "checkpoint"): 0.375,
            ("train_step_seconds", "evaluation"): 0.125,
            ("train_step_seconds", "other"): 0.125,
            ("evaluation_loss", "step"): 2.75,
            ("incidents_total", "signal"): 1,
            ("attempts_total",): 2,
            ("checkpoints_total",): 1,
            ("checkpoint_seconds", "held_up"): 0.5,
            ("checkpoint_seconds", "written"): 3.0,
        }
    )


OF_LIFE = {"run_seconds", "goodput_ratio", "last_checkpoint_timestamp_seconds"}


def test_what_the_run_s_time_went_into(folder):
    life = Life(folder, num_steps=10)
    life.supervise()
    life.begin()
    life.load(start_s=2.0)
    with serve_metrics(folder, attempt=1):
        life.steps(1, 4)
        early = samples(scrape(url(folder)))
        life.write("rank-0", Span(name="checkpoint_write", phase="end", seconds=3.0))
        life.saved(4)
        saved_at = life.now
        life.steps(5, 6)
        life.alert("slow_link")
        life.alert("slow_link")
        life.fail("hang", after_s=15.0)
        late = samples(scrape(url(folder)))
    assert early["run_seconds", "start"] == 2.0
    assert early["run_seconds", "step"] >= 4.0
    assert early["run_seconds", "redone"] == 0.0
    assert (late["run_seconds", "step"], late["run_seconds", "redone"], late["run_seconds", "hang"]) == (4, 2, 15)
    assert late["last_checkpoint_timestamp_seconds",] == saved_at
    assert late["alerts_total", "slow_link"] == 2
    wall = sum(value for key, value in late.items() if key[0] == "run_seconds")
    assert wall == pytest.approx(time.time() - START, abs=60)
    assert late["goodput_ratio",] == pytest.approx(4 / wall)
    assert {key[1] for key in late if key[0] == "run_seconds"} == set(BUCKETS)


def test_how_long_a_node_has_not_been_heard_of(folder):
    nodes = folder.attempt(2) / "nodes"
    nodes.mkdir(parents=True)
    for node in (0, 1):
        (nodes / f"{node}.json").write_text("{}")
    folder.launcher_heartbeat.parent.mkdir(parents=True)
    # Of an attempt that had more nodes.
    for node in (0, 1, 2):
        (folder.launcher_heartbeat.parent / f"node-{node}").write_text("1")
    with serve_metrics(folder, attempt=2):
        scrape(url(folder))
        time.sleep(0.3)
        (folder.launcher_heartbeat.parent / "node-0").write_text("2")
        ages = {
            key[1]: value
            for key, value in samples(scrape(url(folder))).items()
            if key[0] == "heartbeat_age_seconds"
        }
    assert set(ages) == {"0", "1"}
    assert ages["0"] < 0.25 < 0.3 <= ages["1"] < 60


def test_a_scrape_of_a_long_run_reads_what_is_new_and_no_more(folder):
    life = Life(folder, num_steps=20_000)
    life.begin()
    writer = EventWriter(folder.events, "rank-0", attempt=1)
    for step in range(1, 3001):
        life.wait(1.0)
        writer.write(train_step(step, 20_000).model_copy(update={"time": life.now}))
    registry = CollectorRegistry()
    registry.register(RunCollector(folder, 1))
    generate_latest(registry)
    writer.write(train_step(3001, 20_000).model_copy(update={"time": life.now + 1}))
    began = time.thread_time()
    text = generate_latest(registry).decode()
    assert time.thread_time() - began < 0.05
    assert samples(text)["train_step",] == 3001


def test_what_is_not_known_is_left_out(folder):
    unknown = {"worst_rank_loss", "num_positions", "flops", "peak_tflops"}
    EventWriter(folder.events, "rank-0").write(TrainStep(**STEP.model_dump(exclude=unknown)))
    with serve_metrics(folder, attempt=1):
        names = {name for name, *_ in samples(scrape(url(folder)))}
    assert "train_loss" in names
    assert not names & {"train_worst_rank_loss", "train_fill_ratio", "train_tflops_per_device", "train_mfu"}


def test_the_port_is_free_again_when_training_has_ended(folder):
    for attempt in (1, 2):
        with serve_metrics(folder, attempt):
            scrape(url(folder))
        with pytest.raises(urllib.error.URLError):
            scrape(url(folder))


def test_a_taken_port_is_told_and_stops_nothing(folder, capsys):
    port = folder.config().cluster.metrics_port
    with socket.create_server(("0.0.0.0", port)), serve_metrics(folder, attempt=3):
        went_on = True
    assert went_on
    told = [event for event in read_events(folder.events) if isinstance(event, Note)]
    assert [(note.level, note.attempt) for note in told] == [("warning", 3)]
    assert "port" in told[0].text and told[0].text in capsys.readouterr().err


def test_a_config_that_cannot_be_read_is_left_to_the_ranks(folder):
    folder.config_file.write_text("model: [")
    with serve_metrics(folder, attempt=1):
        went_on = True
    assert went_on


@needs_prometheus
def test_the_names_are_as_prometheus_wants_them(folder):
    leader = EventWriter(folder.events, "rank-0", attempt=1)
    for event in (
        STEP,
        Evaluation(name="step", loss=1.0, num_supervised=1),
        Incident(what="signal"),
        Span(name="checkpoint_write", phase="end", seconds=3.0),
        Alert(what="straggler", text="slow"),
    ):
        leader.write(event)
    (folder.attempt(1) / "nodes").mkdir(parents=True)
    (folder.attempt(1) / "nodes" / "0.json").write_text("{}")
    with serve_metrics(folder, attempt=1):
        text = scrape(url(folder))
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@needs_prometheus
def test_prometheus_itself_reads_them(folder, tmp_path):
    leader = EventWriter(folder.events, "rank-0", attempt=1)
    leader.write(STEP)
    port = free_port()
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "scrape_configs": [
            {
                "job_name": "shardline",
                "static_configs": [{"targets": [urllib.parse.urlsplit(url(folder)).netloc]}],
            }
        ],
    }
    # JSON is YAML.
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
    with serve_metrics(folder, attempt=1):
        server = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=(tmp_path / "log").open("w")
        )
        try:
            assert _ask(port, 'shardline_train_loss{run="a-run"}', until=2.5) == 2.5
            leader.write(STEP.model_copy(update={"loss": 2.25}))
            assert _ask(port, 'shardline_train_loss{run="a-run"}', until=2.25) == 2.25
            assert _ask(port, 'sum(shardline_train_step_seconds{run="a-run"})', until=2.0) == 2.0
        finally:
            server.terminate()
            server.wait(30)


def _ask(port, query, until, timeout=60):
    """What Prometheus answers, as soon as it is `until`."""
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    deadline = time.monotonic() + timeout
    value = None
    while value != until and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            result = json.loads(scrape(address))["data"]["result"]
        except (OSError, urllib.error.URLError):
            continue  # it is starting
        value = float(result[0]["value"][1]) if result else None
    return value


@pytest.mark.slow
def test_metrics_are_served_while_a_node_trains(make_run):
    port = free_port()
    run = make_run("a-run", training={"max_steps": 300}, cluster={"metrics_port": port})
    node = run.popen(1)
    address = f"http://127.0.0.1:{port}/metrics"
    step = None
    deadline = time.monotonic() + 120
    while step is None and node.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            step = samples(scrape(address)).get(("train_step",))
        except (OSError, urllib.error.URLError):
            continue
    node.terminate()
    output, _ = node.communicate(timeout=120)
    assert step is not None and step >= 1, output
    with pytest.raises(urllib.error.URLError):
        scrape(address)
