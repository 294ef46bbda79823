"""The pipeline as a row of boxes: one a process, with its fused stages, and one for the consumer. Pure.

The bar of a box is the time in its functions for one item of the source, divided by its workers: where nothing else
holds the items up, the longest bar is the pace of the pipeline. A row that does not know this time (an older report, a
run on Ray) takes it from its busy share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from stagepipe.core import format_ns
from stagepipe.report.model import Report, RunReport, StageReport
from stagepipe.report.render.html.markup import Content, Markup, break_name, element
from stagepipe.report.utilization import CONSUMER

_MIN_SHOWN_BAR: Final = 0.01
_MAX_ROOMY_BOXES: Final = 10
"""With more boxes, each is narrow at 1280 px: its text is smaller and shorter."""

_ALL_HOPS: Final = "hops"
"""What the verdict calls the limit where all stages are too small for processes."""

_TAGS: Final = {"restarts": "restarted", "startup": "slow to start"}
"""What the box of the limit is called, by the kind of the verdict."""


class Box(NamedTuple):
    """A process or the consumer: the time of each of its stages for one source item, divided by its workers, in ns."""

    name: str
    note: str
    parts: Sequence[tuple[str, float]]

    @property
    def ns(self) -> float:
        """The time of all its stages."""
        return sum(ns for _, ns in self.parts)


def measure_boxes(report: Report) -> list[Box]:
    """Return the boxes in the order of the pipeline.

    A sink takes the place of the consumer, except where the consumer limits the run.
    """
    boxes = []
    for stage in report.stages:
        if stage.fused_into is None:
            members = [stage, *(other for other in report.stages if other.fused_into == stage.name)]
            note = f"{stage.workers:,} worker{'s' if stage.workers != 1 else ''}"
            boxes.append(Box(stage.name, note, _measure_parts(members, report.run)))
    has_sink = any(stage.kind == "sink" for stage in report.stages)
    if not has_sink or report.verdict.kind == "consumer":
        consumer = report.consumer
        note = "takes what comes out" if consumer.name == CONSUMER else "in the calling process"
        boxes.append(Box(consumer.name, note, [(consumer.name, consumer.busy_ns / max(report.run.items_in, 1))]))
    return boxes


def draw_pipeline(report: Report) -> Markup:
    """Return the boxes, across a wide screen and down a narrow one, and what their bars mean."""
    verdict, boxes = report.verdict, measure_boxes(report)
    longest = max(boxes, key=lambda box: box.ns)
    limit = boxes[-1] if verdict.kind == "consumer" else None
    limit = limit or next((box for box in boxes if verdict.limited_by in dict(box.parts)), None)
    drawn = []
    for index, box in enumerate(boxes):
        tag = _TAGS.get(verdict.kind, "bottleneck") if box is limit else ""
        drawn.append(_draw_box(box, longest.ns or 1.0, tag, verdict.limited_by))
        if index < len(boxes) - 1:
            drawn.append(_draw_arrow(report, box))
    note = "Bar: time in the functions of a stage for one item of the source, divided by its workers. "
    if limit is longest and verdict.kind not in _TAGS:
        note += "The longest bar limits the rate."
    else:
        note += "The longest bar has the most work; the verdict says what else held this run up."
    flow = "flow tight" if len(boxes) > _MAX_ROOMY_BOXES else "flow"
    return element("div", element("ol", *drawn, class_=flow), element("p", note, class_="note"))


def _measure_parts(members: Sequence[StageReport], run: RunReport) -> list[tuple[str, float]]:
    first, source_items = members[0], max(members[0].source_items or run.items_in, 1)
    if any(stage.source_item_ns for stage in members):
        return [(stage.name, stage.source_item_ns / max(first.workers, 1)) for stage in members]
    busy_ns = first.busy * run.wall_ns / source_items
    works = [stage.run_ns.mean * stage.items for stage in members]
    total = sum(works)
    return [
        (stage.name, busy_ns * (work / total if total else 1 / len(members)))
        for stage, work in zip(members, works, strict=True)
    ]


def _draw_box(box: Box, longest_ns: float, tag: str, limited_by: str) -> Markup:
    """Draw a box. A fused stage that limits the run is marked in the list of its process."""
    share = max(box.ns / longest_ns, _MIN_SHOWN_BAR)
    pieces = [element("i", style=f"--p:{ns / box.ns:.3f}") for _, ns in box.parts if ns > 0]
    bar = element("div", *pieces, class_="fill", style=f"--s:{share:.3f}")
    text = f"{box.name}: {format_ns(box.ns)} per item of the source"
    content: list[Content] = [
        element("div", bar, class_="well", role="img", aria_label=text),
        element("b", break_name(box.name)),
        element("span", format_ns(box.ns), class_="time"),
        element("span", box.note, class_="dim"),
    ]
    if len(box.parts) > 1:
        names = [f"{'+ ' if index else ''}{name} " for index, (name, _) in enumerate(box.parts)]
        lines = (
            element("li", element("b", shown) if name == limited_by else shown, format_ns(ns))
            for shown, (name, ns) in zip(names, box.parts, strict=True)
        )
        content.append(element("ul", *lines, aria_label="stages in this process"))
    if tag:
        content.append(element("span", tag, class_="tag"))
    return element("li", *content, class_="box limit" if tag else "box")


def _draw_arrow(report: Report, box: Box) -> Markup:
    """Draw the hop to the next box: with its cost where it limits the run, or all hops do."""
    names = dict(box.parts)
    hop = next((hop for hop in report.hops if hop.source in names and hop.target not in names), None)
    limit = report.verdict.limited_by.partition(" -> ")[0]
    if hop is None or report.verdict.kind != "hop" or limit not in {hop.source, _ALL_HOPS}:
        return element("li", class_="arrow", aria_hidden="true")
    cost = element("span", f"{format_ns(hop.cost_ns.mean)} per message")
    return element("li", element("span", "bottleneck", class_="tag"), cost, class_="arrow limit")
