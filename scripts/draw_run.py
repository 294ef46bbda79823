"""Draw docs/pictures/top.svg and trace.svg: `stagepipe top` during a real run, and a part of the run's trace.

    python -m scripts.draw_run

The run is the one of `scripts.draw_report`, with two workers that fetch. Look at the pictures afterwards.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.text import Text

from benchmarks.common.page import save_plot
from scripts.draw_report import ROOT, TIMEOUT_S, record_terminal, serve, write_pipeline
from stagepipe.engine import LiveFigures
from stagepipe.report import render_live_run
from stagepipe.runtime import find_runs

PICTURES = ROOT / "docs" / "pictures"
WIDTH = 118  # characters
ROUNDS = 4  # fetches of each photograph, so that the run takes about 20 s
WARM_UP_S = 5.0
SHOWN_MS = 100.0  # of the trace, from its middle
MIN_MS = 0.1  # shorter slices are left out
CHARACTER_MS = 0.65  # width of a label's letter on the axis
TOUCH_MS = 0.0005  # slices that overlap by less follow each other: times are rounded
COLOURS = {"stage": "#4477aa", "hop": "#ccbb44", "wait": "#e8e8e8", "item": "#bbccee", "consumer": "#bbccee"}

Event = dict[str, Any]


def main() -> None:
    """Run the pipeline once, record its state during the run, and draw that state and the trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES)
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="stagepipe-picture-") as name:
        folder = Path(name)
        write_pipeline(folder)
        listing = (folder / "listing.txt").read_text()
        (folder / "listing.txt").write_text("\n".join([listing] * ROUNDS))
        command = [str(Path(sys.executable).with_name("stagepipe")), "run", "thumbnails.yaml"]
        options = ["stages.fetch.workers=2", "--trace", "trace.json", "--quiet"]
        with serve(folder) as environment:
            run = subprocess.Popen([*command, *options], cwd=folder, env=environment)
            try:
                draw_top(run.pid, out / "top.svg")
            finally:
                code = run.wait(TIMEOUT_S)
        if code:
            raise SystemExit(f"the run failed: {code}")
        draw_trace(json.loads((folder / "trace.json").read_text())["traceEvents"], out / "trace.svg")


def draw_top(pid: int, path: Path) -> None:
    """Save the output of `stagepipe top` for the run of process `pid`, over two seconds after a warm-up."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (runs := [run for run in find_runs().runs if run.pid == pid]):
        if time.monotonic() > deadline:
            raise SystemExit("the run does not begin")
        time.sleep(0.1)
    figures = LiveFigures.attach(runs[0])
    time.sleep(WARM_UP_S)
    figures.take(detailed=True)
    time.sleep(2)
    with record_terminal(path, "stagepipe", WIDTH) as console:
        console.print(Text.assemble(("$ ", "bold green"), ("stagepipe top", "bold")))
        console.print(render_live_run(figures.take(detailed=True)))


def draw_trace(events: list[Event], path: Path) -> None:
    """Draw the middle of a trace like a viewer: a track for each process, slices, and an arrow for each message."""
    import matplotlib.pyplot as plt

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    places = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    pids = sorted(names, key=lambda pid: (places[pid], names[pid]))
    slices = [event for event in events if event["ph"] == "X"]
    times = [event["ts"] for event in slices if event["cat"] == "consumer"]
    begin = times[len(times) // 2]
    drawing, axes = plt.subplots(figsize=(11, 0.75 * len(pids) + 0.6))
    for row, pid in enumerate(pids):
        draw_track(axes, row, begin, [event for event in slices if event["pid"] == pid])
    draw_arrows(axes, pids, begin, [event for event in events if event["ph"] in "sf"])
    axes.set(xlim=(0, SHOWN_MS), ylim=(len(pids) - 0.4, -0.6), xlabel="ms")
    axes.set_yticks(range(len(pids)), [names[pid] for pid in pids])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    drawing.tight_layout()
    save_plot(drawing, path)


def draw_track(axes: Any, row: int, begin: float, slices: list[Event]) -> None:
    """Draw the slices of a process: outer slices above their inner slices."""
    ends: list[float] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        start, end = (event["ts"] - begin) / 1000, (event["ts"] - begin + event["dur"]) / 1000
        while ends and ends[-1] <= start + TOUCH_MS:
            ends.pop()
        ends.append(end)
        left, right = max(start, 0.0), min(end, SHOWN_MS)
        if len(ends) > 2 or right - left < MIN_MS:  # noqa: PLR2004 - the viewer shows deeper ones on demand
            continue
        top = row - 0.36 + 0.36 * (len(ends) - 1)
        colour = COLOURS.get(event["cat"], "#aaaaaa")
        axes.add_patch(_rectangle(left, top, right - left, colour))
        if right - left > CHARACTER_MS * len(event["name"]):
            axes.text((left + right) / 2, top + 0.18, event["name"], ha="center", va="center", fontsize=7)


def draw_arrows(axes: Any, pids: list[int], begin: float, ends: list[Event]) -> None:
    """Draw an arrow from each sending to its receipt, if both are shown."""
    by_number: dict[int, list[Event]] = defaultdict(list)
    for event in ends:
        if 0 <= event["ts"] - begin <= SHOWN_MS * 1000:
            by_number[event["id"]].append(event)
    for pair in by_number.values():
        if len(pair) == 2:  # noqa: PLR2004 - both ends
            sent, received = sorted(pair, key=lambda event: event["ph"], reverse=True)
            places = [((each["ts"] - begin) / 1000, pids.index(each["pid"])) for each in (sent, received)]
            (from_x, from_row), (to_x, to_row) = places
            style = {"arrowstyle": "->", "lw": 0.6, "color": "#aa3377"}
            axes.annotate("", (to_x, to_row - 0.1), (from_x, from_row + 0.3), arrowprops=style)


def _rectangle(left: float, top: float, width: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), width, 0.34, facecolor=colour, edgecolor="white", linewidth=0.3)


if __name__ == "__main__":
    main()
