"""The page of HTML: whole, offline, small, and safe to open whatever the names and errors of a run contain."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from stagepipe.report import StoreHopReport, StoreNodeReport, render_html
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


def test_the_object_store_of_ray_has_a_section():
    report = make_report()
    assert 'id="object-store"' not in render_html(report)
    first, *hops = report.hops
    first = msgspec.structs.replace(first, store=StoreHopReport(blocks=12, moved_bytes=5_000_000))
    nodes = (StoreNodeReport(node="3f2a9c01", spilled_bytes=70_000_000),)
    page = render_html(msgspec.structs.replace(report, hops=(first, *hops), store_nodes=nodes))
    assert not Checker(page).open
    for text in ('id="object-store"', "from other nodes", "5.0 MB", "3f2a9c01", "70 MB"):
        assert text in page


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


def test_each_override_of_the_fix_is_one_argument_of_the_shell():
    report = make_report()
    verdict = msgspec.structs.replace(report.verdict, fix="stages.a.workers=3 stages.b;c.workers=2")
    page = render_html(msgspec.structs.replace(report, verdict=verdict))
    assert "stagepipe run CONFIG stages.a.workers=3 &#x27;stages.b;c.workers=2&#x27;" in page


def test_many_long_errors_keep_the_page_small():
    report = make_report(stages=10, trace="deep\n" * 2000)
    (letter, *_), (restart, *_) = report.dead_letters, report.restarts
    letters = (msgspec.structs.replace(letter, error="ValueError: " + "x" * 5000),) * 500
    restarts = (msgspec.structs.replace(restart, cause="y" * 5000),) * 500
    page = render_html(msgspec.structs.replace(report, dead_letters=letters, restarts=restarts))
    assert len(page.encode()) < MAX_BYTES
    assert page.count("and 480 more in the report") == 2


def _parse_colours(rules):
    return dict(re.findall(r"--([a-z0-9]+):(#[0-9a-f]{3,6})", rules))


def _luminance(colour):
    """The relative luminance of WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    channels = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_text_has_contrast_in_light_and_dark():
    style = re.search(r"<style>(.*?)</style>", render_html(make_report()), re.DOTALL)[1]
    light, *dark = (_parse_colours(rules) for rules in re.findall(r":root[^{]*\{([^}]*)\}", style))
    assert len(dark) == 2
    assert dark[0] == dark[1], "the theme of the system and that of the button"
    texts = re.findall(r"[;{](?:color|fill):var\(--(\w+)\)", style)
    assert {"fg", "dim", "bg"} <= set(texts)
    for theme in (light, light | dark[0]):
        pairs = [(text, back) for text in ("fg", "dim") for back in ("bg", "card")] + [("bg", "accent")]
        for text, back in pairs:
            bright, dull = sorted((_luminance(theme[text]), _luminance(theme[back])), reverse=True)
            assert (bright + 0.05) / (dull + 0.05) >= 4.5, (text, back)
        for line in ("l0", "l1", "l2", "l3", "accent"):  # graphics need 3
            bright, dull = sorted((_luminance(theme[line]), _luminance(theme["bg"])), reverse=True)
            assert (bright + 0.05) / (dull + 0.05) >= 3, line


def test_the_limit_is_marked_where_it_is():
    report = make_report()

    def find_tagged(limited_by, kind="stage"):
        verdict = msgspec.structs.replace(report.verdict, limited_by=limited_by, kind=kind)
        chain = re.search(r'<ol class="chain">.*</ol>', render_html(msgspec.structs.replace(report, verdict=verdict)))[
            0
        ]
        assert chain.count("limits the run") == 1
        assert chain.count("box limited") == 1
        return re.sub(r"<[^>]*>", " ", chain[: chain.index("limits the run")]).split()

    assert "decode" in find_tagged("decode")[-4:]
    assert find_tagged("normalise")[-2:] == ["+", "normalise"]
    assert find_tagged("consumer", "consumer")[-1] == "sink"


def test_nothing_needs_a_mouse():
    page = render_html(make_report())
    titles = re.findall(r"<(\w+)[^>]*><title>", page)
    assert set(titles) == {"meta", "svg"}, "a tooltip inside a chart: its text is nowhere else"
    assert page.count('class="scroll" tabindex="0"') == page.count('class="scroll"')
    assert not re.search(r"onclick|onmouse|:hover", page)
    assert re.search(r":focus-visible\{outline:3px", page)
    assert "Messages of files → decode by size" in page


def test_the_command_names_the_config():
    report = make_report()
    assert "stagepipe run CONFIG stages.decode.workers=3" in render_html(report)
    assert "stagepipe run &#x27;my configs/a.yaml&#x27; stages" in render_html(
        msgspec.structs.replace(report, config_path="my configs/a.yaml")
    )
