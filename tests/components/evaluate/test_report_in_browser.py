"""The report in a real browser, inside a frame that runs no scripts, as Kubeflow shows it."""

import html
import json
import re
import shutil
import subprocess

import pytest

from training.events import Evaluation, EventWriter, TrainStep

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
    height: inside.documentElement.scrollHeight,
    charts: [...inside.querySelectorAll("svg")].map(shown),
    cutOff: [...inside.querySelectorAll("td, p, h1, h2, pre")]
      .filter((element) => element.getBoundingClientRect().right > {width} + 1).map((element) => element.tagName),
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


@pytest.fixture
def report(trained_run, evaluate):
    step = trained_run()
    events = EventWriter(step.folder.events, "rank-0", attempt=1)
    for number in range(1, 31):
        events.write(
            TrainStep(
                step=number,
                num_steps=30,
                loss=4.0 - number / 20,
                grad_norm=1.0,
                learning_rate=1e-4,
                num_tokens=900 + number,
                num_supervised=400,
                num_positions=1000,
                num_devices=8,
                seconds=2.0,
                data_s=0.1,
                compute_s=1.5,
                optimizer_s=0.2,
                flops=1e15,
                peak_tflops=989.4,
                memory_gib=3.0,
            )
        )
        if number % 5 == 0:
            events.write(Evaluation(name="step", step=number, loss=4.0 - number / 25, num_supervised=99))
    return (evaluate(step) / "report.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [520, 1200])
def test_everything_fits_and_is_drawn(width, report, tmp_path):
    seen = in_browser(report, width, tmp_path)
    assert seen["width"] <= width, "it would scroll sideways"
    assert seen["cutOff"] == []
    assert len(seen["charts"]) == 4 and min(seen["charts"]) > 10_000
    assert seen["height"] > 900


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_it_follows_the_reader_s_colour_scheme(report, tmp_path):
    light = in_browser(report, 800, tmp_path, "--blink-settings=preferredColorScheme=1")
    dark = in_browser(report, 800, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert light["ink"] != dark["ink"]
