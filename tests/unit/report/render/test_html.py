"""The page of HTML: whole, offline, small, and safe to open whatever the names and errors of a run contain."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import combinations

import msgspec
import numpy as np
import pytest

from stagepipe.report import (
    ConsumerReport,
    SlowItem,
    StoreHopReport,
    StoreNodeReport,
    build_report,
    render_html,
    render_notebook,
)
from tests.support.reports import MS, SECOND, make_report

MAX_BYTES = 100_000
VOID = {"meta", "wbr"}
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


def change(struct, **changes):
    return msgspec.structs.replace(struct, **changes)


def change_run(report, **changes):
    return change(report, run=change(report.run, **changes))


def change_verdict(report, **changes):
    return change(report, verdict=change(report.verdict, **changes))


def change_stages(report, **changes):
    """Replace fields of stages by their names."""
    return change(report, stages=tuple(change(stage, **changes.get(stage.name, {})) for stage in report.stages))


def find_section(page, name):
    return re.search(rf'<details id="{name}".*?(?=<details id=|</main>)', page, re.DOTALL)[0]


def read_text(markup):
    """The text of a part of the page, without its style and script."""
    markup = re.sub(r"<(style|script|title)>.*?</\1>|<wbr/>", "", markup, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def read_bars(page):
    """The length of the bar of each box, as a share of the longest, by the name of the box."""
    boxes = re.findall(r'<li class="box.*?style="--s:([\d.]+)".*?<b>(.*?)</b>', page)
    return {name.replace("<wbr/>", ""): float(length) for length, name in boxes}


@pytest.mark.parametrize("stages", [2, 4, 14])
@pytest.mark.parametrize("points", [0, 1, 240])
def test_page_is_whole_offline_and_small(stages, points):
    page = render_html(make_report(stages=stages, points=points))
    checked = Checker(page)
    assert not checked.open
    assert len(checked.ids) == len(set(checked.ids))
    assert not checked.links
    assert not checked.unnamed, "an SVG has no text alternative"
    assert not re.search(r"https?://|@import|url\(", page)
    assert len(page.encode()) < MAX_BYTES


class TestFigures:
    def read(self, report):
        figures = re.search(r'<dl class="figures">(.*?)</dl>', render_html(report))[1]
        return [read_text(figure) for figure in figures.split("</div>") if figure]

    def test_come_first_and_large(self):
        report = change_run(change_verdict(make_report(), share=0.94), samples_per_s=1234.0)
        page = render_html(report)
        rate, time, bottleneck, memory = self.read(report)
        assert rate.startswith("Rate 1,234 samples/s")
        assert time.startswith("Time 1.0 min")
        assert bottleneck == "Bottleneck decode busy 94 % of the time"
        assert memory == "Memory 1.1 GB of all workers of 8.0 GB shared memory at most 640 MB"
        assert page.index('class="figures"') < page.index('class="verdict"') < page.index('class="flow"')

    def test_without_samples_per_s_the_rate_is_that_of_items(self):
        rate, *_ = self.read(change_run(make_report(), items_per_s=640.0))
        assert rate.startswith("Rate 640 ")

    def test_a_run_that_delivered_nothing_has_an_error_and_no_rate(self):
        report = change_run(make_report(), status="failed", error="RunError: no file\nTraceback", items_per_s=0.0)
        assert not any("Rate" in figure for figure in self.read(report))
        page = render_html(report)
        assert "The run failed: RunError: no file" in read_text(page)
        assert page.index("The run failed") < page.index('class="figures"')

    def test_a_verdict_without_a_name_has_no_bottleneck(self):
        assert self.read(change_verdict(make_report(), limited_by="", kind="none"))[2] == "Bottleneck none found"


def test_the_words_match_the_config():
    report = change_run(make_report(), items_in=300, items_out=1, samples_out=300, items_skipped=0)
    last = report.stages[-1].name

    def read_header(report):
        return read_text(re.search(r"<header>.*?</header>", render_html(report))[0])

    batches = change_stages(report, **{last: {"outputs": 5, "output_unit": "batches"}})
    assert "300 items in, 5 batches out" in read_header(batches)
    cropped = change_run(batches, samples_out=250)
    assert "300 items in, 5 batches with 250 samples out" in read_header(cropped)
    files = change_stages(change_run(report, files_out=1), **{last: {"outputs": 1, "output_unit": "files"}})
    assert "300 items in, 1 file out" in read_header(files)


class TestBars:
    def test_their_length_is_the_time_of_a_source_item_divided_by_workers(self):
        """A sink that wrote one file in one call of 0.1 s is not what a run of 2,000 items waits for."""
        report = change_stages(
            make_report(),
            files={"source_item_ns": 10_000},
            decode={"source_item_ns": 8 * MS, "workers": 2},
            augment={"source_item_ns": 1 * MS},
            normalise={"source_item_ns": 1 * MS},
            detect={"source_item_ns": 50_000, "kind": "sink", "items": 1, "starved": 0.99},
        )
        bars = read_bars(render_html(report))
        assert bars == {"files": 0.01, "decode": 1.0, "augment": 0.5, "detect": 0.013}
        assert "The longest bar limits the rate." in render_html(report)

    def test_without_that_time_it_is_the_busy_share_of_the_run(self):
        report = change_stages(make_report(), files={"source_items": 1000})
        page = render_html(report)
        bars = read_bars(page)
        assert list(bars) == ["files", "decode", "augment", "detect", "sink"]
        assert bars["decode"] == 1.0
        assert bars["detect"] == pytest.approx(0.25 / 0.94, abs=0.01)
        assert bars["files"] == pytest.approx(2 * 0.2 / 0.94, abs=0.01), "half of the items reached it"
        assert "28 ms" in page, "0.94 of 60 s, for 2,000 items"

    def test_the_consumer_is_the_last_box_where_there_is_no_sink(self):
        consumer = ConsumerReport(busy_ns=60 * SECOND, name="training step")
        report = change(make_report(), consumer=consumer)
        assert list(read_bars(render_html(report)))[-1] == "training step"
        assert read_bars(render_html(report))["training step"] == 1.0
        report = change_stages(report, detect={"kind": "sink"})
        assert list(read_bars(render_html(report)))[-1] == "detect"

    def test_the_note_makes_no_false_claim(self):
        page = render_html(change_verdict(make_report(), limited_by="other programs", kind="machine"))
        assert "The longest bar limits the rate." not in page
        assert 'class="box limit"' not in page

    def test_one_box_is_marked_as_the_bottleneck(self):
        def find_marked(limited_by, kind="stage"):
            page = render_html(change_verdict(make_report(), limited_by=limited_by, kind=kind))
            (box,) = re.findall(r'<li class="box limit">.*?<b>(\w+)</b>', page)
            return box

        assert find_marked("decode") == "decode"
        assert find_marked("normalise") == "augment", "it is fused into it"
        assert find_marked("consumer", "consumer") == "sink"

    def test_a_hop_that_limits_is_marked_with_its_cost(self):
        page = render_html(change_verdict(make_report(), limited_by="decode -> augment", kind="hop"))
        flow = re.search(r'<ol class="flow">.*?</ol>', page)[0]
        (arrow,) = re.findall(r'<li class="arrow limit">.*?</li>', flow)
        assert read_text(arrow) == "bottleneck 79 µs per message"
        assert flow.index("decode") < flow.index("arrow limit") < flow.index("augment")
        assert 'class="box limit"' not in flow
        page = render_html(change_verdict(make_report(), limited_by="hops", kind="hop"))
        assert page.count('class="arrow limit"') == 4, "all of them, where the stages are too small for processes"


class TestWhatIf:
    def test_is_the_first_section_with_gains_and_their_bounds(self):
        report = make_report()
        report = change(report, what_if=(change(report.what_if[0], gain_low=0.2), *report.what_if[1:]))
        page = render_html(report)
        assert re.findall(r'<details id="([\w-]+)"', page)[0] == "what-if"
        assert "decode with 3 workers +50 % +20 % about 960 stages.decode.workers=3" in read_text(
            find_section(page, "what-if")
        )

    def test_changes_that_are_not_offered_are_folded_with_their_reason(self):
        report = make_report()
        reason = "a stage cannot be left out by the config"
        refused = change(report.what_if[1], ineligible_reason=reason)
        section = find_section(render_html(change(report, what_if=(report.what_if[0], refused))), "what-if")
        offered, folded = section.split("<details>")
        assert "without decode" not in read_text(offered)
        assert "1 change that the verdict does not offer, and why" in read_text(folded)
        assert reason in folded

    def test_without_estimates_there_is_none(self):
        assert 'id="what-if"' not in render_html(change(make_report(), what_if=()))


class TestCommand:
    def read(self, report):
        return read_text(re.search(r'<div class="command">.*?</div>', render_html(report))[0])

    def test_has_the_gain_of_the_same_overrides(self):
        report = make_report()
        first, second = report.what_if
        assert "stagepipe run CONFIG stages.decode.workers=3" in self.read(report)
        assert self.read(report).endswith("+50 % items/s, estimated")
        report = change(report, what_if=(second, change(first, gain_low=0.2)))
        assert self.read(report).endswith("+50 % items/s, estimated, at least +20 %")
        assert "estimated" not in self.read(change(report, what_if=(second,)))

    def test_the_advice_does_not_repeat_the_gain(self):
        report = make_report()
        report = change(report, what_if=(change(report.what_if[0], gain_low=0.2),))
        advice = "Try decode with 3 workers: about +50 % items/s, at least +20 %. Or make it cheaper."
        page = read_text(render_html(change_verdict(report, advice=advice)))
        assert "Try decode with 3 workers. Or make it cheaper." in page

    def test_names_the_config(self):
        report = change(make_report(), config_path="my configs/a.yaml")
        assert "stagepipe run &#x27;my configs/a.yaml&#x27; stages" in self.read(report)

    def test_each_override_is_one_argument_of_the_shell(self):
        report = change_verdict(make_report(), fix="stages.a.workers=3 stages.b;c.workers=2")
        assert "stages.a.workers=3 &#x27;stages.b;c.workers=2&#x27;" in self.read(report)


class TestOverTime:
    def test_each_share_is_there_once(self):
        report = change_stages(make_report(), detect={"starved": 0.37, "busy": 0.54})
        page = read_text(render_html(report))
        assert page.count("37 %") == 1
        assert page.count("54 %") == 1

    def test_all_stages_have_one_scale(self):
        report = make_report(points=100)
        first, second, *rest = report.series.stages
        stages = (change(first, items_per_s=(400.0,) * 100), change(second, items_per_s=(100.0,) * 100))
        rest = tuple(change(stage, items_per_s=(0.0,) * 100) for stage in rest)
        section = find_section(render_html(change(report, series=change(report.series, stages=stages + rest))), "rates")
        assert "rate, 0 to 400 items/s" in read_text(section)
        starts = re.findall(r'rate over time[^>]*><path d="M0 (\d+)l', section)
        assert starts == ["0", "30", "40", "40"], "heights from the top of 40"

    def test_the_rate_of_a_sink_counts_items(self):
        """It wrote 1,000 items as 2 parts, in two intervals of 0.25 s of ten."""
        report = change_stages(make_report(points=10), detect={"kind": "sink", "source_items": 1000})
        *others, last = report.series.stages
        last = change(last, items_per_s=(0.0,) * 4 + (4.0, 4.0) + (0.0,) * 4)
        others = [change(stage, items_per_s=(4000.0,) * 10) for stage in others]
        section = find_section(
            render_html(change(report, series=change(report.series, stages=(*others, last)))), "rates"
        )
        (steps,) = re.findall(r'detect: rate over time[^>]*><path d="M0 40l([^"]*)"', section)
        assert steps == "1 0 1 0 1 0 1 -20 1 0 1 20 1 0 1 0 1 0", "2,000 items/s: half of the scale"
        assert "before sink" not in section, "nothing comes after it"

    def test_a_wait_that_ends_late_is_no_overhead(self):
        """A stage without input for 90 s counts its wait when it ends: the time before belongs to it."""
        report = make_report(points=10)
        course = report.series.stages[0]
        none, late = (0.0,) * 10, (0.0,) * 9 + (1.0,)
        course = change(course, busy=none, blocked=none, starved=late)
        report = change_stages(report, files={"starting": 0.0})
        page = render_html(change(report, series=change(report.series, stages=(course,))))
        row = find_section(page, "time").split("<tbody>")[1].split("</tr>")[0]
        assert re.findall(r'class="fill-(\w+)"', row) == ["starved"]

    def test_without_a_course_the_shares_are_bars(self):
        page = render_html(make_report(points=0))
        assert 'id="rates"' not in page
        assert find_section(page, "time").count('class="strip"') == 4


def test_slow_items_have_the_name_that_errors_give_them():
    slow = (
        SlowItem(item="37", stage="decode", run_ns=80 * MS, queue_ns=MS, label="images/cat.jpg"),
        SlowItem(item="9", stage="decode", run_ns=MS, queue_ns=MS),
    )
    section = read_text(find_section(render_html(change(make_report(), slowest=slow)), "slowest"))
    assert "images/cat.jpg (item 37) decode 80 ms" in section
    assert "item 9 decode" in section


def test_hops_come_folded_with_their_words():
    page = render_html(make_report())
    section = find_section(page, "hops")
    assert ' open=""' not in section[: section.index(">")]
    assert page.index('id="what-if"') < page.index('id="hops"')
    for word in ("hop", "message", "pipe", "shared memory", "cost", "queue", "saved"):
        assert f"<dt>{word}</dt>" in section
    assert "files → decode 64 B to 128 B 1,900" in read_text(section)


def test_the_object_store_of_ray_has_a_section():
    report = make_report()
    assert 'id="object-store"' not in render_html(report)
    first, *hops = report.hops
    first = change(first, store=StoreHopReport(blocks=12, moved_bytes=5_000_000))
    nodes = (StoreNodeReport(node="3f2a9c01", spilled_bytes=70_000_000),)
    page = render_html(change(report, hops=(first, *hops), store_nodes=nodes))
    assert not Checker(page).open
    for text in ('id="object-store"', "from other nodes", "5.0 MB", "3f2a9c01", "70 MB"):
        assert text in page


def test_text_of_the_user_is_escaped():
    plain = Checker(render_html(make_report()))
    page = render_html(make_report(prefix=SCRIPT, trace=SCRIPT))
    found = [tag for tag in Checker(page).tags if tag != "wbr"]
    assert found == [tag for tag in plain.tags if tag != "wbr"]
    assert SCRIPT not in page
    assert page.count("&lt;script&gt;") > 20


def test_page_copes_with_missing_data():
    full = make_report(points=0)
    nothing = {"hops": (), "slowest": (), "dead_letters": (), "restarts": (), "calibration": {"pipe": [[4096, 5000]]}}
    page = render_html(change(full, **nothing))
    assert 'id="hops"' not in page
    assert "none: an older version, or a very short run" in page
    assert "Messages by size" in render_html(change(full, calibration={"pipe": [[4096, 5000]]}))
    assert "Nothing to judge" in render_html(
        change(change_verdict(full, sentence="Nothing to judge: no stage ran."), stages=(), what_if=(), **nothing)
    )


def test_many_long_errors_keep_the_page_small():
    report = make_report(stages=10, trace="deep\n" * 2000)
    (letter, *_), (restart, *_) = report.dead_letters, report.restarts
    letters = (change(letter, error="ValueError: " + "x" * 5000),) * 500
    restarts = (change(restart, cause="y" * 5000),) * 500
    page = render_html(change(report, dead_letters=letters, restarts=restarts))
    assert len(page.encode()) < 1.5 * MAX_BYTES
    assert page.count("and 480 more in the report") == 2


def test_the_style_of_a_notebook_fragment_applies_only_to_the_fragment():
    fragment = render_notebook(make_report())
    assert not Checker(fragment).open
    assert not Checker(fragment).ids
    assert "<script" not in fragment
    assert "<html" not in fragment
    text = read_text(fragment)
    for part in (
        "640 samples/s",
        "decode limits the run",
        "stages.decode.workers=3",
        "The longest bar limits the rate.",
    ):
        assert part in text
    style = re.search(r"<style>(.*?)</style>", fragment, re.DOTALL)[1]
    depth, selectors, start = 0, [], 0
    for index, character in enumerate(style):
        if character == "{":
            selectors += [style[start:index]] if depth == 0 else []
            depth += 1
        elif character == "}":
            depth, start = depth - 1, index + 1
    assert depth == 0
    assert selectors
    assert all(".stagepipe" in one or "stagepipe" in one for rule in selectors for one in rule.split(",")), selectors


def read_colours(page):
    """The colours of the light and of the dark theme by their names."""
    pairs = re.findall(r"--(\w+):light-dark\((#[0-9a-f]+),(#[0-9a-f]+)\)", page)
    assert len(pairs) > 10
    return {name: light for name, light, _ in pairs}, {name: dark for name, _, dark in pairs}


def to_linear(colour):
    """Red, green and blue as shares of light, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    channels = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    return np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels])


def contrast(first, second):
    bright, dull = sorted((to_linear(c) @ (0.2126, 0.7152, 0.0722) for c in (first, second)), reverse=True)
    return (bright + 0.05) / (dull + 0.05)


def test_all_text_has_contrast_in_light_and_dark():
    page = render_html(make_report())
    texts = set(re.findall(r"[;{]color:var\(--(\w+)\)", page))
    assert texts == {"fg", "dim", "bg", "accent"}
    for theme in read_colours(page):
        pairs = [(text, back) for text in ("fg", "dim", "accent") for back in ("bg", "card")] + [("bg", "limit")]
        for text, back in pairs:
            assert contrast(theme[text], theme[back]) >= 4.5, (text, back)
        for line in ("l0", "l1", "l2", "limit", "bar"):  # graphics need 3
            assert contrast(theme[line], theme["card"]) >= 3, line


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG
# 15 (2009), severity 1.
VISION = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def to_lab(linear):
    """CIE L*a*b* of a colour in linear sRGB, D65."""
    xyz = np.array(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))) @ np.clip(
        linear, 0, 1
    )
    x, y, z = np.cbrt(np.maximum(xyz / (0.9505, 1.0, 1.089), 0.008856))
    return np.array((116 * y - 16, 500 * (x - y), 200 * (y - z)))


@pytest.mark.parametrize("vision", VISION)
def test_states_differ_for_colour_blind_readers(vision):
    matrix = np.array(VISION[vision])
    for theme in read_colours(render_html(make_report())):
        for names in (("busy", "overhead", "blocked", "starved", "starting"), ("bar", "limit")):
            seen = {name: to_lab(matrix @ to_linear(theme[name])) for name in names}
            for first, second in combinations(names, 2):
                assert np.linalg.norm(seen[first] - seen[second]) > 15, (first, second)


def test_nothing_needs_a_mouse_or_a_script():
    page = render_html(make_report())
    assert page.count("<title>") == 1, "a tooltip inside a chart: its text is nowhere else"
    assert page.count('class="scroll" tabindex="0"') == page.count('class="scroll"')
    assert not re.search(r"onclick|onmouse|:hover", page)
    assert re.search(r":focus-visible\{outline:3px", page)
    for button in re.findall(r"<button[^>]*>", page):
        assert 'hidden=""' in button, "without its script it does nothing"


def test_a_table_that_is_wider_than_a_phone_says_so():
    page = render_html(make_report())
    for name, is_wide in (("what-if", True), ("stages", True), ("slowest", True), ("trust", False)):
        assert ('class="wide"' in find_section(page, name)) == is_wide, name
    assert re.search(r"\.wide>\.caption::after\{content:\"\s*scroll →\"", page)


def test_changes_of_workers_are_a_course_and_a_table(scaled_record):
    page = render_html(build_report(scaled_record))
    assert not Checker(page).open
    assert "1 → 5, at most 6 workers" in read_text(page)
    assert 'aria-label="decode: workers over time, 0 to 6 workers"' in page
    changes = read_text(find_section(page, "workers"))
    assert "4.0 s decode 4 → 5 it limits the run, busy 98 % of the time 25 ms +25 % +23 %" in changes
    assert "8.0 s decode none ValueError: no model" in changes


def test_a_run_without_changes_of_workers_says_nothing_of_them():
    page = render_html(make_report())
    assert 'id="workers"' not in page
    assert ": workers over time" not in page
