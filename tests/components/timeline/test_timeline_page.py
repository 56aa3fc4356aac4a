"""The page about a run's life."""

import html
import json
import re
import shutil
import subprocess
import threading

import pytest

from components.timeline import page as page_module
from components.timeline.live import LiveTimeline
from components.timeline.page import render_timeline
from components.timeline.strip import NUM_CELLS, pieces
from components.timeline.words import trouble_line
from tests.training.ledger.lives import Life, new_folder
from training.ledger import BUCKETS, Interval, Ledger
from training.run_folder import RunFolder

CHROMIUM = shutil.which("chromium")
HOSTILE = '<script src="http://evil.example/x.js"></script><img src=x onerror=alert(2)>"\'&{{ 7*7 }}'


def stormy(folder, num_attempts, host="ip-10-0-12-7.eu-west-1.compute.internal", evidence="words"):
    life = Life(folder, num_steps=4 * num_attempts + 2)
    life.supervise()
    for number in range(num_attempts):
        life.begin(queue_s=5.0 if number == 0 else 0.0)
        life.load(restore_s=1.0 if number else 0.0)
        first = 4 * number + 1
        life.steps(first, first + 5, data_s=0.01)
        life.saved(first + 3)
        if number == 0:
            life.alert(host=host, rank=3)
        if number < num_attempts - 1:
            facts = {"host": host, "rank": 3, "evidence": evidence, "fingerprint": f"hang:{evidence}"}
            life.fail("hang", after_s=9.0, action="restart_elsewhere", **facts)
    life.span("export", 3.0)
    life.end()
    life.supervise("end")
    return Ledger.of(folder)


def test_the_page_shows_attempts_buckets_and_incidents(tmp_path):
    ledger = stormy(new_folder(tmp_path), 3)
    page = render_timeline(ledger)
    assert page == render_timeline(ledger)
    assert page.count('<span class="number">') == 3
    text = " ".join(re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())
    assert f"Goodput {100 * ledger.goodput:.1f}" in text
    assert "Attempts 3 Incidents 2 Steps lost 4" in text
    line = (
        "hang after step 6, rank 3 on ip-10-0-12-7.eu-west-1.compute.internal; restarted elsewhere: it may pass; "
        "2 steps lost; stepping again after 9.1 s"
    )
    assert trouble_line(ledger.incidents[0]) == line
    assert html.unescape(text).count(line) == 1
    assert page.count(line) == 3, "beside its mark on both strips, too"
    assert "a straggler" in text
    for bucket, seconds in ledger.seconds.items():
        assert f'class="key {bucket}"' in page and seconds > 0
    assert "key stopped" not in page


def test_names_and_last_words_are_escaped_and_nothing_is_loaded(tmp_path):
    page = render_timeline(stormy(new_folder(tmp_path), 2, host=HOSTILE[:60], evidence=HOSTILE))
    assert "<script" not in page and "<img" not in page and "49" not in page.split("last words")[-1]
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="(?!#)', page)


def test_a_run_that_has_not_begun_has_a_page(tmp_path):
    assert "has not begun" in render_timeline(Ledger.of(new_folder(tmp_path)))


def test_a_cell_has_the_colour_of_what_it_was_mostly_spent_on():
    second = 1_000_000
    life = [
        Interval(0, 500 * second, "start", 1),
        Interval(500 * second, 500 * second + 300_000, "step", 1, 1),
        Interval(500 * second + 300_000, 501 * second, "hang", 1, 1),
        Interval(501 * second, 1000 * second, "step", 1, 2),
    ]
    found = pieces(life, 0, 1000 * second)
    assert [(piece.start, piece.width, piece.bucket) for piece in found] == [
        (0, 500, "start"),
        (500, 1, "hang"),
        (501, 499, "step"),
    ]
    assert [piece.seconds for piece in found] == [500.0, 0.7, 499.0]


def test_a_strip_of_a_month_is_no_longer_than_one_of_a_minute():
    step = 26_000_000
    life = [
        part
        for n in range(20_000)
        for part in (
            Interval(n * step, n * step + 100_000, "data_wait", 1, n),
            Interval(n * step + 100_000, (n + 1) * step, "step", 1, n),
        )
    ]
    found = pieces(life, 0, 20_000 * step)
    assert [(piece.bucket, piece.width) for piece in found] == [("step", NUM_CELLS)]


def test_the_page_is_written_anew_after_an_incident_and_at_the_end(tmp_path):
    folder = new_folder(tmp_path)
    life = Life(folder)
    life.supervise()
    written = threading.Event()
    looks = []

    def seen(text):
        looks.append(text)
        written.set()

    real = page_module.write_atomically
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "write_atomically", lambda path, text: (real(path, text), seen(text)))
        with LiveTimeline(folder, print, look_s=0.01):
            assert written.wait(20)  # at the start
            written.clear()
            life.begin()
            life.load()
            life.steps(1, 3)
            life.fail("oom")
            assert written.wait(20)
            assert "oom after step 3" in folder.timeline.read_text()
            life.begin()
    assert "Attempts</dt><dd>2" in looks[-1]


def test_a_page_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    folder.timeline.mkdir(parents=True)
    notes = []
    with LiveTimeline(folder, notes.append, look_s=0.01) as live:
        live._write()
        went_on = True
    assert went_on
    (note,) = notes
    assert note.startswith("the page timeline.html could not be written, and the training goes on without: ")


PAGE = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="report" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe><pre id="found"></pre>
<script>
document.getElementById("report").onload = ({{ target }}) => {{
  const inside = target.contentDocument;
  const strips = [...inside.querySelectorAll(".strip")].map((strip) => strip.getBoundingClientRect());
  document.getElementById("found").textContent = JSON.stringify({{
    width: inside.documentElement.scrollWidth,
    strips: strips.map((box) => [box.width, box.height]),
    black: [...inside.querySelectorAll("rect")].filter((rect) => getComputedStyle(rect).fill === "rgb(0, 0, 0)")
      .length,
    marks: [...inside.querySelectorAll(".mark")].filter((mark) => {{
      const box = mark.getBoundingClientRect(), strip = mark.parentElement.getBoundingClientRect();
      return box.left >= strip.left - 6 && box.right <= strip.right + 6;
    }}).length,
  }});
}};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "num_attempts"), [(420, 40), (1200, 1)])
def test_everything_fits_and_is_drawn(width, num_attempts, tmp_path):
    ledger = stormy(new_folder(tmp_path), num_attempts)
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(width=width, page=html.escape(render_timeline(ledger), quote=True)))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-quic"]
    command += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=4000",
        "--dump-dom",
        file.as_uri(),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', printed, re.DOTALL)
    assert found is not None and found[1], printed[-500:]
    seen = json.loads(html.unescape(found[1]))
    assert seen["width"] <= width, "it would scroll sideways"
    assert len(seen["strips"]) == num_attempts + 1
    assert min(box[0] for box in seen["strips"]) > width / 2.5
    assert seen["black"] == 0, "a bucket without a colour"
    # On its attempt's strip and on the whole run's.
    assert seen["marks"] == 2 * (num_attempts - 1) + 2


def test_every_bucket_has_a_colour_in_both_schemes():
    style = (page_module.Path(page_module.__file__).parent / "timeline.html.j2").read_text()
    for bucket in BUCKETS:
        assert style.count(f"--{bucket}: #") == 2, bucket
