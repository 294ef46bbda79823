"""The page of HTML: whole, offline, small, and safe to open whatever the names and errors of a run contain."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from stagepipe.report import render_html
from tests.support.reports import make_report

MAX_BYTES = 300_000
VOID = {"meta"}
SCRIPT = "<script>alert('x')</script>\"&"


class Checker(HTMLParser):
    """Checks that elements nest, and collects attributes and tags."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.unnamed = [], [], [], [], 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"{tag}: an attribute twice"
        self.tags.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.unnamed += tag == "svg" and not ("aria-label" in attributes or attributes.get("aria-hidden") == "true")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("stages", [2, 4, 10])
@pytest.mark.parametrize("points", [0, 1, 240])
def test_page_is_whole_offline_and_small(stages, points):
    page = render_html(make_report(stages=stages, points=points))
    checked = Checker(page)
    assert not checked.open
    assert len(checked.ids) == len(set(checked.ids))
    assert not checked.links
    assert not checked.unnamed, "an SVG has no text alternative"
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert len(page.encode()) < MAX_BYTES


def test_estimates_are_named_so_with_their_override():
    report = make_report()
    page = render_html(report)
    assert "What if (estimates)" in page
    assert "<code>stages.decode.workers=3</code>" in page
    assert "about" in page
    assert "+50 %" in page
    assert "What if" not in render_html(msgspec.structs.replace(report, what_if=()))


def test_text_of_the_user_is_escaped():
    plain = Checker(render_html(make_report()))
    page = render_html(make_report(prefix=SCRIPT, trace=SCRIPT))
    assert Checker(page).tags == plain.tags
    assert SCRIPT not in page
    assert page.count("&lt;script&gt;") > 20


def test_page_copes_with_missing_data():
    full = make_report(points=0)
    changes = {
        "hops": (),
        "slowest": (),
        "dead_letters": (),
        "restarts": (),
        "calibration": {"pipe": [[4096, 5000]]},
    }
    page = render_html(msgspec.structs.replace(full, **changes))
    assert 'id="hops"' not in page
    assert "has no course over time" in page
    without_curves = msgspec.structs.replace(full, calibration={"pipe": [[4096, 5000]]})
    assert 'id="sizes"' in render_html(without_curves)


def test_fix_is_one_argument_of_the_shell():
    report = make_report()
    verdict = msgspec.structs.replace(report.verdict, fix="stages.a b.workers=3")
    page = render_html(msgspec.structs.replace(report, verdict=verdict))
    assert "stagepipe run CONFIG &#x27;stages.a b.workers=3&#x27;" in page


def test_many_long_errors_keep_the_page_small():
    report = make_report(stages=10, trace="deep\n" * 2000)
    (letter, *_), (restart, *_) = report.dead_letters, report.restarts
    letters = (msgspec.structs.replace(letter, error="ValueError: " + "x" * 5000),) * 500
    restarts = (msgspec.structs.replace(restart, cause="y" * 5000),) * 500
    page = render_html(msgspec.structs.replace(report, dead_letters=letters, restarts=restarts))
    assert len(page.encode()) < MAX_BYTES
    assert page.count("and 480 more in the report") == 2
