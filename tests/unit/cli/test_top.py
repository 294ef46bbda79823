"""`stagepipe top` finds the run that is meant, shows it as a table or as JSON, and leaves it as it is."""

import io
import json
import os
import re
import threading

import msgspec
import pytest
from rich.console import Console

from stagepipe import Pipeline
from stagepipe.report import (
    LIVE_SCHEMA,
    LiveHop,
    LivePercentiles,
    LiveRun,
    LiveStage,
    LiveWorkerChange,
    render_live_run,
)
from tests.support.command import call_here
from tests.support.kills import until
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)
NAP = stage("nap", with_={"seconds": 0.005})
RUN = LiveRun(
    name="thumbnails",
    run_id="4711-1",
    pid=4711,
    state="running",
    elapsed_ns=75 * 10**9,
    items_done=1234,
    items_total=2000,
    items_out=19,
    samples_out=1216,
    items_per_s=345.2,
    samples_per_s=340.0,
    limited_by="decode",
    shared_memory_bytes=12 << 20,
    shared_memory_limit_bytes=4 << 30,
    stages=(
        LiveStage(
            name="source",
            kind="source",
            covered_ns=1,
            items=1300,
            items_per_s=345.0,
            busy=0.02,
            blocked=0.97,
            rss_bytes=42 << 20,
        ),
        LiveStage(
            name="decode",
            fused=("resize",),
            workers=2,
            covered_ns=1,
            items=1250,
            items_per_s=345.0,
            busy=0.93,
            starved=0.01,
            work=0.97,
            queued=13.4,
            run_ns=LivePercentiles(p50=5_600_000, p99=9_000_000),
            rss_bytes=120 << 20,
            errors=3,
            restarts=1,
        ),
        LiveStage(name="batch", is_starting=True),
        LiveStage(name="sink", kind="consumer", covered_ns=1, items=19, items_per_s=5.3, starved=0.9, queued=0.1),
    ),
    hops=(
        LiveHop(source="source", target="decode", messages=1250, cost_ns=LivePercentiles(p50=9_000, p99=40_000)),
        LiveHop(source="resize", target="batch"),
        LiveHop(source="batch", target="sink", messages=19, cost_ns=LivePercentiles(p50=120_000, p99=400_000)),
    ),
)
TABLE = """
thumbnails  running  1,234 of 2,000 items in, 19 batches out  62 %  345/s  elapsed 1:15  starting batch
process 4711  shared memory 13 MB of 4.3 GB  340 samples/s out
decode + resize limits the run: its 2 workers work 97 % of the time

  stage            workers  time             busy      rate   queue  run p50  hop p50  hop p99     RSS  errors  restarts
────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
  source                 1  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒    2 %     345/s                                      44 MB
> decode + resize        2  █████████████▓   93 %     345/s    13.4   5.6 ms   9.0 µs    40 µs  126 MB       3         1
  batch                  1  starting
  sink                   1  ▓░░░░░░░░░░░░░    0 %     5.3/s     0.1            120 µs   400 µs
  █ busy  ▓ overhead  ▒ blocked  ░ starved
"""


def draw(run: LiveRun, width: int, **options) -> list[str]:
    console = Console(width=width, record=True, force_terminal=False, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(render_live_run(run, **options))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_table_has_a_line_for_each_row_and_names_the_limit():
    assert draw(RUN, 120) == TABLE.strip("\n").splitlines()


@pytest.mark.parametrize("width", [30, 60, 80, 100, 120])
def test_nothing_wraps_and_the_limit_is_named_at_any_width(width):
    long_name = msgspec.structs.replace(RUN.stages[1], name="decode_" + "photographs_" * 5 + "quickly")
    run = msgspec.structs.replace(
        RUN, name="n" * 200, limited_by=long_name.name, stages=(RUN.stages[0], long_name, *RUN.stages[2:])
    )
    lines = draw(run, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == len(TABLE.strip("\n").splitlines())
    if width >= 60:
        assert lines[2].startswith("decode_") or "..." in lines[2]
        assert "limits the run" in lines[2]
        assert any(line.startswith("> decode_") and "quick" not in line.split("...")[0] for line in lines)


def test_the_last_change_of_workers_has_a_line_below_the_limit():
    change = LiveWorkerChange(stage="decode", before=1, after=2, at_ns=63 * 10**9)
    run = msgspec.structs.replace(RUN, last_change=change)
    lines = draw(run, 120)
    assert lines[3] == "decode 1 → 2 workers, 12 s ago"
    assert lines[:3] + lines[4:] == TABLE.strip("\n").splitlines()
    assert lines[3] not in draw(run, 120, view="progress")
    assert "decode 1 → 2 workers, 12 s ago" in run._repr_html_()
    many = tuple(LiveStage(name=f"stage_{n}", work=n / 40, busy=n / 40) for n in range(40))
    assert len(draw(msgspec.structs.replace(run, stages=many, hops=()), 80, fits_height=True)) < 25


def test_a_low_terminal_shows_the_rows_that_work_most():
    stages = tuple(LiveStage(name=f"stage_{n}", work=n / 40, busy=n / 40) for n in range(40))
    run = msgspec.structs.replace(RUN, stages=stages, hops=(), limited_by="stage_39")
    lines = draw(run, 80, fits_height=True)
    assert len(lines) < 25
    assert any(line.startswith("> stage_39") for line in lines)
    assert "less busy" in lines[-2]


def test_colours_go_where_they_are_not_wanted(monkeypatch):
    drawn = {}
    for no_color in (False, True):
        console = Console(width=100, force_terminal=True, no_color=no_color, color_system="standard", record=True)
        with console.capture() as capture:
            console.print(render_live_run(RUN))
        drawn[no_color] = capture.get()
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", drawn[False])
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", drawn[True])
    plain = Console(width=100, file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=False)
    with plain.capture() as capture:
        plain.print(render_live_run(RUN))
    assert "#####" in capture.get()
    assert capture.get().isascii()


def test_each_sort_of_limit_has_its_words():
    def limit(**fields) -> str:
        stage = LiveStage(name="it", work=0.7, **fields)
        return draw(msgspec.structs.replace(RUN, stages=(stage,), limited_by="it", hops=()), 100)[2]

    assert limit(kind="source") == "the source limits the run: it works 70 % of the time"
    assert limit(kind="sink") == "the sink it limits the run: it works 70 % of the time"
    assert limit(kind="consumer") == "it limits the run: it works 70 % of the time; the pipeline keeps up"
    idle = msgspec.structs.replace(RUN, stages=(LiveStage(name="it"),), limited_by="", hops=())
    assert draw(idle, 100)[2] == "no limit: no stage works most of its time"


def test_a_run_is_found_by_name_by_process_and_as_the_only_one(socket_folder):
    with Pipeline(pipeline(NAP, source=100_000, name="one")) as running:
        next(iter(running))
        for arguments in (["one"], [str(os.getpid())], []):
            result = call_here("top", *arguments, "--once", "--json", "--interval", "0.1")
            assert (result.exit_code, result.stderr) == (0, "")
            [line] = result.stdout.splitlines()
            seen = json.loads(line)
            assert (seen["schema"], seen["name"], seen["pid"]) == (LIVE_SCHEMA, "one", os.getpid())
            assert next(iter(seen)) == "schema"
            assert [each["name"] for each in seen["stages"]] == ["source", "nap", "consumer"]
            assert seen["hops"][0]["from"] == "source"
        result = call_here("top", "--once", "--interval", "0.1")
        assert result.exit_code == 0
        assert "one  running" in result.stdout
        assert "busy" in result.stdout


def test_no_run_and_several_runs_are_told_apart(socket_folder):
    result = call_here("top")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no run found: you have no active run on this machine" in result.stderr
    with (
        Pipeline(pipeline(NAP, source=100_000, name="first")) as first,
        Pipeline(pipeline(NAP, source=100_000, name="second")) as second,
    ):
        next(iter(first))
        next(iter(second))
        ids = sorted(path.name for path in socket_folder.iterdir())
        assert len(ids) == 2
        for arguments, sentence in (([], "several runs"), ([str(os.getpid())], "several"), (["third"], "no run has")):
            result = call_here("top", *arguments, "--once")
            assert (result.exit_code, result.stdout) == (2, "")
            assert sentence in result.stderr
            assert all(f"  {each}  " in result.stderr for each in ids)
            assert "first" in result.stderr
        result = call_here("top", "second", "--once", "--json", "--interval", "0.1")
        assert json.loads(result.stdout)["name"] == "second"
        result = call_here("top", ids[0], "--once", "--json", "--interval", "0.1")
        assert json.loads(result.stdout)["run_id"] == ids[0]


def test_it_ends_with_the_run(socket_folder):
    running = Pipeline(pipeline(NAP, source=100_000, name="one"))
    ended = threading.Event()

    def iterate_until_the_run_is_watched() -> None:
        with running:
            for _ in running:
                if ended.is_set():
                    return

    thread = threading.Thread(target=iterate_until_the_run_is_watched)
    thread.start()
    try:
        until(lambda: socket_folder.exists() and call_here("top", "one", "--once", "--json").exit_code == 0)
        threading.Timer(1.0, ended.set).start()
        result = call_here("top", "one", "--json", "--interval", "0.2")
    finally:
        ended.set()
        thread.join()
    assert result.exit_code == 0
    states = [json.loads(line)["state"] for line in result.stdout.splitlines()]
    assert len(states) > 1
    assert (states[0], states[-1]) == ("running", "ended")


@pytest.mark.parametrize("interval", ["0", "-1", "never"])
def test_a_wrong_interval_is_refused(interval):
    called = call_here("top", "--interval", interval)
    assert called.exit_code == 2
    assert "Invalid value for '--interval'" in called.stderr
