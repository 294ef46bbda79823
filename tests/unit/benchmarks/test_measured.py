"""benchmarks.measured writes the tables of docs/measured.md and README.md, and draws the plot, from figures of runs."""

import html
import re

import pytest

from benchmarks import measured
from benchmarks.common.command import machine
from benchmarks.common.figures import Estimate
from benchmarks.hop.__main__ import make_hop_table, make_loop_table
from benchmarks.loader.__main__ import find_part, make_loader_table
from benchmarks.loader.__main__ import targets as loader_targets
from benchmarks.peers.__main__ import PAGE, RESULTS, make_page

ABOUT = {"command": "python -m benchmarks.hop", "machine": machine()}
ROUNDS = 6


def make_row(contestant, us, *, size="1.2MB", touched=False):
    return {"contestant": contestant, "size": size, "touched": touched, "us": [us] * ROUNDS}


@pytest.fixture
def hop():
    rows = [
        make_row("stagepipe copied", 60.0),
        make_row("stagepipe copied", 90.0, touched=True),
        make_row("Pipe", 1800.0),
    ]
    turn = {"us": 12.0, "cpu_us": 18.0, "later_us": 10.0, "later_cpu_us": 15.0}
    loops = {"two numbers": {"stagepipe": [turn] * ROUNDS, "Pipe": [{**turn, "us": 4.0, "cpu_us": 9.0}] * ROUNDS}}
    return {**ABOUT, "rows": rows, "loops": loops}


def test_the_table_of_sizes_has_the_ratio_of_its_figures(hop):
    lines = list(make_hop_table(hop))
    assert "| stagepipe copied | 60.0 | 30.0 [30.0, 30.0] |" in lines
    assert "| Pipe | 1,800 | 1 |" in lines


def test_a_ratio_is_the_quotient_of_the_two_medians():
    own, peer = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [70.0, 60.0, 50.0, 40.0, 30.0, 20.0]
    rows = [{**make_row("stagepipe copied", 0), "us": own}, {**make_row("Pipe", 0), "us": peer}]
    lines = list(make_hop_table({**ABOUT, "rows": rows}))
    assert "| stagepipe copied | 3.5 | 12.9 [3.3, 70.0] |" in lines


def test_a_size_with_fewer_rounds_says_so(hop):
    hop["rows"].append({**make_row("Pipe", 9.0, size="64MB"), "us": [9.0] * 3})
    hop["rows"].append({**make_row("stagepipe copied", 9.0, size="64MB"), "us": [9.0] * 3})
    assert "Medians of 6 rounds (64 MB: 3); brackets: 97 % interval" in "\n".join(make_hop_table(hop))


TARGETS = [
    {"text": "at 1.2MB, copied, at least 30 times", "measured": "34.0 [29.9, 64.3] times (a note)", "met": None},
    {"text": "at 0B, no slower", "measured": "", "met": None},
    {"text": "a loop over dicts, stagepipe: no slower", "measured": "2.1 [2.0, 2.2] times Pipe; more", "met": False},
]


def test_each_target_stands_below_its_table(hop):
    hop["targets"] = TARGETS
    assert [line for line in make_hop_table(hop) if line.startswith("- ")] == [
        "- undecided: at 1.2MB, copied, at least 30 times: 34.0 [29.9, 64.3] times",
        "- not measured: at 0B, no slower",
    ]
    assert [line for line in make_loop_table(hop) if line.startswith("- ")] == [
        "- missed: a loop over dicts, stagepipe: no slower: 2.1 [2.0, 2.2] times Pipe"
    ]


def test_the_targets_of_the_loader_have_tables():
    tables = [find_part(target.text) for target in loader_targets({"rows": []})]
    assert tables == ["collate", "collate", "quickstart", "quickstart", "models"]


def test_contestants_that_did_not_run_are_named(hop):
    hop["missing"] = ["faster-fifo", "iceoryx2"]
    last = [list(make(hop))[-1] for make in (make_hop_table, make_loop_table)]
    assert [line.rpartition(": ")[2] for line in last] == ["faster-fifo, iceoryx2.", "faster-fifo."]


def test_a_table_names_its_rounds_coverage_and_command(hop):
    text = "\n".join([*make_hop_table(hop), *make_loop_table(hop)])
    assert text.count("Medians of 6 rounds; brackets: 97 % interval") == 2
    assert "`python -m benchmarks.hop`" in text


def test_a_loop_is_compared_with_pipe(hop):
    lines = list(make_loop_table(hop))
    assert "| stagepipe | 12.0 [12.0, 12.0] | 18.0 [18.0, 18.0] | 3.00 [3.00, 3.00] | 2.00 [2.00, 2.00] |" in lines
    assert "| Pipe | 4.0 [4.0, 4.0] | 9.0 [9.0, 9.0] |  |  |" in lines


def test_the_memory_of_models_stands_in_one_table():
    turn = {
        "items_per_s": 30.0,
        "cpu_s_per_item": 0.05,
        "first_batch_s": 1.5,
        "second_first_s": 0.1,
        "waits_s": [0.01],
        "pss_bytes": 2_000_000_000,
        "life_cpu_s": 9.0,
    }
    rows = [
        {"part": "models", "contestant": name, "answers": [turn] * ROUNDS}
        for name in ("stagepipe 3 processes", "DataLoader 3 forked made before")
    ]
    document = {**ABOUT, "rows": rows, "jobs": [{"part": "models", "batch": 1}]}
    lines = list(make_loader_table(document, "models"))
    assert [line for line in lines if "forked made before" in line] == [
        (
            "| DataLoader 3 forked made before | 30.0 [30.0, 30.0] | 50.00 [50.00, 50.00] | 1.50 s | max of 6: 9.91 ms "
            "| 9.0 s | 2,000 MB |"
        )
    ]


def test_only_the_tables_with_figures_change(hop):
    page = (
        "a\n<!-- hop -->old<!-- end hop --><!-- loop --><!-- end loop -->\nb\n<!-- models -->kept<!-- end models -->\n"
    )
    text = measured.replace_tables(page, hop)
    assert "old" not in text
    assert "| stagepipe copied | 60.0 |" in text
    assert text.endswith("b\n<!-- models -->kept<!-- end models -->\n")


def test_the_page_has_a_place_for_each_table():
    text = measured.MEASURED.read_text()
    for name in ("hop", "loop", "quickstart", "collate", "models"):
        assert text.count(f"<!-- {name} -->") == text.count(f"<!-- end {name} -->") == 1


def test_the_tables_of_the_page_are_those_of_the_committed_figures():
    text = measured.MEASURED.read_text()
    runs = [measured.load(name) for name in ("hop", "loader")]
    assert measured.replace_tables(text, *runs) == text
    assert measured.replace_tables(text.replace("stagepipe copied |", "stagepipe copied | 1", 1), *runs) == text


@pytest.mark.parametrize(
    "low, value, high, words",
    [
        (22.0, 30.0, 61.0, "30.0 [22.0, 61.0] times faster"),
        (0.4, 0.5, 0.8, "2.00 [1.25, 2.50] times slower"),
        (0.9, 1.1, 1.2, "undecided: 1.10 [0.90, 1.20] times as fast"),
    ],
)
def test_a_ratio_is_said_from_our_side(low, value, high, words):
    assert measured.Comparison("a hop", "1 us", "Pipe: 2 us", Estimate(value, low, high, 0.97)).say() == words


def test_the_summary_is_that_of_the_committed_figures():
    text = measured.MEASURED.read_text()
    assert text.count("times faster |") >= 3
    assert measured.replace_summary(text) == text
    assert measured.replace_summary(text.replace("times faster |", "times |", 1)) == text


def test_the_jobs_of_readme_are_those_of_the_committed_figures():
    text = measured.README.read_text()
    assert "plain loop: 404,428 | **0.23 [" in text  # what is lost is shown
    assert measured.replace_jobs(text) == text
    assert measured.replace_jobs(text.replace("404,428", "40,428")) == text


def test_the_plot_of_readme_is_that_of_the_committed_figures(tmp_path):
    measured.draw_plot(tmp_path / "hop.svg")
    made, kept = (path.read_text() for path in (tmp_path / "hop.svg", measured.PLOT))
    assert find_markers(made) == find_markers(kept)
    assert len(find_markers(kept)) >= 25


def find_markers(svg):
    """The places of the points, to a pixel; the rest differs between versions of matplotlib."""
    points = re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: #\w+; stroke: #\w+', svg)
    return [(round(float(x)), round(float(y))) for x, y in points]


def test_readme_is_short():
    text = measured.README.read_text()
    assert len(text.splitlines()) <= 130
    assert len(re.findall(r"(?<!!)\[[^]]+\]\([^)]+\)", text)) <= 12


def test_the_picture_shows_a_fix_that_pays():
    svg = html.unescape((measured.ROOT / "docs" / "pictures" / "report.svg").read_text()).replace("\xa0", " ")
    assert "try: " in svg
    before, *after = (float(rate.replace(",", "")) for rate in re.findall(r"out, ([\d,.]+) items/s, ", svg))
    assert after
    assert after[-1] > 1.2 * before


def test_the_tables_of_whole_jobs_are_those_of_the_committed_figures():
    text = PAGE.read_text()
    assert "| **stagepipe** |" in text
    assert make_page(RESULTS, text) == text
