"""One struct has the figures of a run while it goes: how they are added, and when a row limits the run."""

from msgspec.structs import replace

from stagepipe.report import COLUMNS, LiveHop, LiveRun, LiveStage, add_live_runs, find_limiting_stage

ONE = LiveRun(
    elapsed_ns=5,
    items_in=10,
    items_done=8,
    items_total=20,
    items_out=7,
    samples_out=14,
    samples_per_s=3.0,
    items_per_s=2.0,
    stages=(LiveStage(name="source"), LiveStage(name="decode", is_starting=True)),
)


def test_amounts_of_islands_are_added_and_times_are_not():
    crop = (*ONE.stages, LiveStage(name="crop", is_starting=True))
    total = add_live_runs([ONE, replace(ONE, elapsed_ns=9, items_in=1, limited_by="resize", stages=crop)])
    assert total.starting == ("decode", "crop")
    assert replace(total, stages=()) == LiveRun(
        elapsed_ns=9,
        items_in=11,
        items_done=16,
        items_total=40,
        items_out=14,
        samples_out=28,
        samples_per_s=6.0,
        limited_by="resize",
        items_per_s=4.0,
    )


def test_a_total_that_one_does_not_know_is_not_known():
    assert add_live_runs([ONE, replace(ONE, items_total=None)]).items_total is None


def test_before_any_island_has_started_there_is_nothing():
    assert add_live_runs([]).items_in == 0


def test_a_stage_that_works_less_than_most_of_its_time_limits_nothing():
    idle, busy = (LiveStage(name=f"{work}", workers=1, work=work) for work in (0.59, 0.6))
    starting = LiveStage(name="starting", workers=1, work=1.0, is_starting=True)
    assert find_limiting_stage([]) == ""
    assert find_limiting_stage([idle, starting]) == ""
    assert find_limiting_stage([idle, busy, starting]) == "0.6"


def test_no_cell_is_wider_than_its_column():
    busy = LiveStage(
        name="busy",
        workers=1000,
        busy=1.0,
        starved=1.0,
        blocked=1.0,
        items_per_s=12345.6,
        rss_bytes=999_400_000,
        errors=99_999,
        restarts=1000,
    )
    hop = LiveHop(source="a", target="b")
    for column in COLUMNS:
        assert len(column.cell(busy, hop)) <= max(column.width, len(column.heading)), column.heading


def test_a_notebook_shows_the_rows_and_the_limit():
    html = replace(ONE, name="<b>", limited_by="decode")._repr_html_()
    assert "&lt;b&gt;: 8 of 20 items in, 7 batches out, running" in html
    assert "<td" in html
    assert "limited by decode" in html
