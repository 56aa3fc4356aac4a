"""The report in a real browser, inside a frame that runs no scripts, as Kubeflow shows it."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from components.evaluate.decision import Decision
from components.evaluate.report import render_report
from components.evaluate.results import Generation
from tests.components.evaluate.reports import measured_more, report_data
from tests.components.evaluate.results import compared, result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# The page around the frame measures what it shows, and writes it where --dump-dom prints it.
PAGE = """<!doctype html><title>frame</title>
<iframe id="frame" sandbox="allow-same-origin" width="{width}" height="900" style="border:0" srcdoc="{report}">
</iframe>
<pre id="found"></pre>
<script>
document.getElementById("frame").onload = (event) => {{
  const inside = event.target.contentDocument;
  const shown = (element) => {{ const box = element.getBoundingClientRect(); return box.width * box.height; }};
  document.getElementById("found").textContent = JSON.stringify({{
    width: inside.documentElement.scrollWidth,
    labels: Math.max(...[...inside.querySelectorAll("tbody th")].map((e) => e.getBoundingClientRect().width)),
    height: inside.documentElement.scrollHeight,
    charts: [...inside.querySelectorAll("svg")].map(shown),
    cutOff: [...inside.querySelectorAll("td, p, h1, h2, pre")]
      // What is wider than the page and can be scrolled to is not cut off.
      .filter((element) => !element.closest(".scroll") && element.getBoundingClientRect().right > {width} + 1)
      .map((element) => element.tagName),
    ink: getComputedStyle(inside.body).color,
  }});
}};
</script>"""


def in_browser(report, width, tmp_path, *options):
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(width=width, report=html.escape(report, quote=True)))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-quic", *options]
    command += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=4000",
        "--dump-dom",
        page.as_uri(),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', printed, re.DOTALL)
    assert found is not None and found[1], printed[-500:]
    return json.loads(html.unescape(found[1]))


LONG = "Donaudampfschifffahrt" * 400
HOSTILE_TEXTS = (LONG, "\u202eright to left\u202d", "\x00\x1b[31m\x07\ud7ff", "\n" * 3000, "\u0627\u0644" * 900)


def report(*, is_hostile):
    data = report_data()
    data = replace(data, history=measured_more(data.history))
    if not is_hostile:
        return render_report(data)
    said = tuple(Generation(text, text, text) for text in HOSTILE_TEXTS)
    scores = {LONG[:200]: (1e300, 10**9), "task/" + "m" * 80: (-1.0, 1)}
    models = [
        replace(result(name, loss, scores=scores), generations=said)
        for name, loss in (("base", 700.0), ("tuned", 1e-9), ("champion", 3.0))
    ]
    found = compared(*models, sources=(LONG[:300], "wiki"))
    decision = Decision(False, "champion", ((False, LONG),), "3", LONG)
    return render_report(replace(data, run="r" * 48, results=found, decision=decision))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "is_hostile"), [(520, True), (1200, False)])
def test_everything_fits_and_is_drawn(width, is_hostile, tmp_path):
    seen = in_browser(report(is_hostile=is_hostile), width, tmp_path)
    assert seen["width"] <= width, "it would scroll sideways"
    assert seen["cutOff"] == [] and seen["labels"] < width / 2
    assert len(seen["charts"]) == 4 and min(seen["charts"]) > 10_000
    assert seen["height"] > 900


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_it_follows_the_reader_s_colour_scheme(tmp_path):
    page = report(is_hostile=False)
    light = in_browser(page, 800, tmp_path, "--blink-settings=preferredColorScheme=1")
    dark = in_browser(page, 800, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert light["ink"] != dark["ink"]
