"""The pipeline as a chain of boxes: a box per process, with its fused stages, and a link per hop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stagepipe.core import format_bytes, format_ns, format_percent
from stagepipe.report.model import HopReport, Report, StageReport
from stagepipe.report.render.html.charts import STATES, draw_shares
from stagepipe.report.render.html.markup import Markup, element, join

_MIN_SHOWN_SHARE: Final = 0.005
"""A smaller share is printed as 0 %, and is left out."""


def draw_pipeline(report: Report) -> Markup:
    """Return the chain. It runs downwards, so that it fits a narrow screen and a page of paper."""
    processes = [
        (stage, [other for other in report.stages if other.fused_into == stage.name])
        for stage in report.stages
        if stage.fused_into is None
    ]
    longest_ns = max((_compute_ns_per_item(stage, fused) for stage, fused in processes), default=0.0) or 1.0
    parts = []
    for stage, fused in processes:
        width = _compute_ns_per_item(stage, fused) / longest_ns
        parts.append(_draw_process(stage, fused, width, limited_by=report.verdict.limited_by))
        ends = {stage.name, *(other.name for other in fused)}
        hops = [hop for hop in report.hops if hop.source in ends and hop.target not in ends]
        parts.extend(_draw_hop(hop, is_limit=report.verdict.kind == "hop" and _names_hop(report, hop)) for hop in hops)
    return element("ol", *parts, _draw_consumer(report), class_="chain")


def draw_legend(names: Sequence[str] = STATES) -> Markup:
    """Return what the colours and patterns of the states mean."""
    meanings = {
        "busy": "busy: in the stage's function",
        "overhead": "overhead: sending, receiving, waiting for a CPU",
        "blocked": "blocked: a later stage is slower",
        "starved": "starved: an earlier stage is slower",
        "starting": "starting",
    }
    items = (element("li", draw_shares({name: 1.0}, name), meanings[name]) for name in names)
    return element("ul", *items, class_="legend")


def _compute_ns_per_item(stage: StageReport, fused: Sequence[StageReport]) -> float:
    """The time in the functions of a process per item, divided by its workers: what decides its rate."""
    return sum(part.run_ns.mean for part in (stage, *fused)) / max(stage.workers, 1)


def _names_hop(report: Report, hop: HopReport) -> bool:
    return hop.source in report.verdict.limited_by and hop.target in report.verdict.limited_by


def _draw_consumer(report: Report) -> Markup:
    is_limit = report.verdict.kind == "consumer"
    head = element("div", element("b", report.consumer.name), *_draw_limit_tag(is_shown=is_limit), class_="head")
    return element("li", head, class_="box limited" if is_limit else "box")


def _draw_limit_tag(*, is_shown: bool) -> list[Markup]:
    return [element("span", "limits the run", class_="tag limit")] if is_shown else []


def _draw_process(stage: StageReport, fused: Sequence[StageReport], width: float, *, limited_by: str) -> Markup:
    """Draw a process. The tag stands at the stage that limits the run, which may be fused into the process."""
    shares = {name: float(getattr(stage, name)) for name in STATES}
    text = ", ".join(f"{name} {format_percent(share)}" for name, share in shares.items() if share >= _MIN_SHOWN_SHARE)
    workers = f"{stage.workers:,} worker{'s' if stage.workers != 1 else ''}"
    duration = f"{format_ns(_compute_ns_per_item(stage, fused))} per item"
    head = element(
        "div",
        element("b", stage.name),
        element("span", workers, class_="tag"),
        *_draw_limit_tag(is_shown=stage.name == limited_by),
        element("span", duration, class_="right"),
        class_="head",
    )
    bar = element(
        "div", draw_shares(shares, f"{stage.name}: {text}"), class_="width", style=f"width:{max(width, 0.02):.1%}"
    )
    lines = join(
        element(
            "li",
            f"+ {part.name}",
            *_draw_limit_tag(is_shown=part.name == limited_by),
            element("span", f"{format_ns(part.run_ns.mean)} per call", class_="right"),
        )
        for part in fused
    )
    inside = [element("ul", lines, class_="fused", aria_label="fused into this process")] if fused else []
    is_limit = limited_by in (stage.name, *(part.name for part in fused))
    shares_line = element("p", text.replace(" %", "\N{NO-BREAK SPACE}%"), class_="shares")
    return element("li", head, bar, shares_line, *inside, class_="box limited" if is_limit else "box")


def _draw_hop(hop: HopReport, *, is_limit: bool) -> Markup:
    count = max(hop.messages.total, 1)
    facts = [
        describe_transport(hop),
        f"{format_ns(hop.cost_ns.p50)} per message",
        f"{format_bytes(hop.bytes.total / count)} each",
    ]
    return element("li", " · ".join(facts), class_="hop limited" if is_limit else "hop")


def describe_transport(hop: HopReport) -> str:
    """Return how the messages of a hop travelled, the most frequent way first."""
    names = {
        "local": "call",
        "pipe": "pipe",
        "shared_memory": "shared memory",
        "mixed": "mixed",
        "object_store": "store",
    }
    counts = {name: getattr(hop.messages, key) for key, name in names.items()}
    used = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
    return ", ".join(used) or hop.transport.mode.replace("_", " ")
