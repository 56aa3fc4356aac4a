"""Charts as SVG that becomes a part of an HTML page: what all of them share.

Text stays text and takes the page's font; colours are CSS variables of the page, so that one chart serves light
and dark.
"""

import html
import io
import re

from matplotlib.figure import Figure

# Drawn in colours that nothing else has, each replaced by the variable of its name.
INK, QUIET, RULE, TRAIN, BASE, TUNED = (f"#0a{n:02x}0b" for n in range(1, 7))
_VARIABLES = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    RULE: "var(--rule)",
    TRAIN: "var(--train)",
    BASE: "var(--base)",
    TUNED: "var(--tuned)",
}

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.facecolor": "none",
    "axes.edgecolor": RULE,
    "axes.labelcolor": QUIET,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 1,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "ytick.major.size": 0,
    "xtick.major.size": 4,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; `width` and `height` are in pixels of the page."""
    # 72 to the inch: one unit of the drawing is a pixel, where the page shows it at its own size.
    return Figure(figsize=(width / 72, height / 72), facecolor="none")


def as_svg(figure: Figure, name: str, summary: str) -> str:
    """The figure as an SVG element for an HTML page.

    Args:
        figure: Drawn under `STYLE`, in the colours of this module.
        name: Of the chart; no other on the page has it.
        summary: What it shows, for those who do not see it.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # The style sheet is for pages of its own: it would apply to the whole document.
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = _with_own_ids(svg, name)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None
    text = html.escape(summary)
    opening = f'<svg viewBox="{view[1]}" class="chart-{name}" role="img" aria-label="{text}"><title>{text}</title>'
    svg = opening + svg[svg.index(">") + 1 :]
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _with_own_ids(svg: str, name: str) -> str:
    """Keep the ids that are referred to, under the chart's name: a page holds several charts."""
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    return re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", svg)
