"""The page of HTML in headless Chromium: no text overlaps, nothing is wider than the screen, and it prints."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from itertools import pairwise

import msgspec
import pytest

from stagepipe.report import render_html, render_notebook
from tests.support.reports import make_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")

# The frame gives the page a width below the smallest window of a browser.
FRAME = """<!DOCTYPE html><body><iframe id="f" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<pre id="found"></pre><script>
document.getElementById("f").onload = (event) => {{
  const inner = event.target.contentDocument, boxes = [], found = [];
  inner.querySelectorAll("details").forEach((section) => {{ section.open = true; }});
  if (inner.documentElement.scrollWidth > {width}) found.push("wider: " + inner.documentElement.scrollWidth);
  const walker = inner.createTreeWalker(inner.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {{
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || ["TITLE", "SCRIPT"].includes(parent.tagName.toUpperCase())) continue;
    const range = inner.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width && box.height) {{
      if (box.right > {width} + 1 && !parent.closest(".scroll")) found.push("cut: " + node.data);
      boxes.push([box, node]);
    }}
  }}
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {{
    const [a, first] = boxes[i], [b, second] = boxes[j];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (first !== second && wide > 2 && high > 3) found.push(first.data + " | " + second.data);
  }}
  document.getElementById("found").textContent = JSON.stringify({{count: boxes.length, found}});
}};
</script>"""

MEASURE = """<pre id="found"></pre><script>
document.getElementById("found").textContent = JSON.stringify([...document.querySelectorAll(".box")].map((box) => {
  const {top, bottom, left, right} = box.getBoundingClientRect();
  const {width, height} = box.querySelector(".fill").getBoundingClientRect();
  return {name: box.querySelector("b").textContent, top, bottom, left, right, width, height};
}));
</script>"""


def run_chromium(folder, *arguments):
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}")
    command = [CHROMIUM, *options, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def find_faults(page, width, folder):
    path = folder / "frame.html"
    path.write_text(FRAME.format(page=html.escape(page), width=width), encoding="utf-8")
    size = "--window-size=1400,1000"
    dom = run_chromium(folder, size, "--virtual-time-budget=3000", "--dump-dom", path.as_uri())
    result = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert result["count"] > 100
    return result["found"]


def measure_boxes(fragment, width, folder):
    """Where the boxes of the pipeline are, and the size of their bars, in px."""
    path = folder / "fragment.html"
    path.write_text(f'<div style="width:{width}px">{fragment}</div>{MEASURE}', encoding="utf-8")
    dom = run_chromium(folder, "--window-size=1400,1000", "--virtual-time-budget=1000", "--dump-dom", path.as_uri())
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)[1]))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overlaps_or_is_cut(width, theme, tmp_path):
    report = make_report(stages=10, limit="detect", points=30, prefix="a_rather_long_name_of_")
    page = render_html(report).replace("<html ", f'<html data-theme="{theme}" ')
    assert find_faults(page, width, tmp_path) == []


def test_faults_are_found(tmp_path):
    page = render_html(make_report(points=30)).replace(
        "</style>", ".box .dim{position:absolute;left:12px;top:8px}p{min-width:500px}</style>"
    )
    faults = find_faults(page, 390, tmp_path)
    assert any(fault.startswith("wider") for fault in faults)
    assert any("decode | 2 workers" in fault for fault in faults)


@pytest.mark.parametrize("count", [4, 14])
def test_the_pipeline_goes_across_a_wide_screen_and_down_a_narrow_one(count, tmp_path):
    fragment = render_notebook(make_report(stages=count))
    wide, narrow = (measure_boxes(fragment, width, tmp_path) for width in (1248, 358))
    assert len(wide) == len(narrow) == count + 1
    assert {box["top"] for box in wide} == {wide[0]["top"]}
    assert all(a["right"] <= b["left"] for a, b in pairwise(wide))
    assert {box["left"] for box in narrow} == {narrow[0]["left"]}
    assert all(a["bottom"] <= b["top"] for a, b in pairwise(narrow))
    for boxes, side in ((wide, "height"), (narrow, "width")):
        longest = max(boxes, key=lambda box: box[side])
        assert longest["name"] == "decode"
        assert longest[side] > 2 * boxes[2][side]


def test_page_prints(tmp_path):
    report = msgspec.structs.replace(make_report(stages=10, limit="detect"), name="printed")
    path, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    path.write_text(render_html(report), encoding="utf-8")
    run_chromium(tmp_path, f"--print-to-pdf={printed}", path.as_uri())
    assert printed.read_bytes().startswith(b"%PDF")
