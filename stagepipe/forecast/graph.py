"""Renders a forecast as a graph: Mermaid text, or a small SVG of boxes and arrows.

Pure; runs in the caller's process and needs no library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from stagepipe.core import format_bytes, format_ns
from stagepipe.forecast.model import Forecast, HopForecast, StageForecast
from stagepipe.plan import SINK_NAME

_WIDTH_PX = 560
_BOX_WIDTH_PX = 300
_MARGIN_PX = 20
_PADDING_PX = 12
_HOP_LENGTH_PX = 64
_BAR_HEIGHT_PX = 5
_LINE_HEIGHT_PX = 19
"""Fits the font size of 12 px."""
_CHARACTER_WIDTH_PX = 6.6
"""About the width of a character in a monospace font of 12 px."""


@dataclass(frozen=True)
class _ProcessBox:
    """The box of a process: its lines of text, and its utilization from 0 to 1 (None: unknown)."""

    name: str
    lines: tuple[str, ...]
    utilization: float | None
    is_bottleneck: bool = False

    @property
    def height_px(self) -> int:
        return len(self.lines) * _LINE_HEIGHT_PX + 2 * _PADDING_PX


def render_mermaid(forecast: Forecast) -> str:
    """Render a Mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html) with a line per process and hop.

    >>> print(render_mermaid(forecast))  # doctest: +SKIP
    flowchart TD
      p0["source<br/>1 worker, 190 µs per item<br/>32 MB"]
      p0 -->|"image 602 kB: shared memory<br/>78 µs per message"| p1
    """
    boxes = [*_make_boxes(forecast), _ProcessBox(SINK_NAME, (SINK_NAME,), None)]
    lines = ["flowchart TD"]
    lines += [
        f'  p{index}["{"<br/>".join(_escape_mermaid(line) for line in box.lines)}"]' for index, box in enumerate(boxes)
    ]
    for index, hop in enumerate(_list_process_hops(forecast)):
        label = "<br/>".join(_escape_mermaid(line) for line in _make_hop_label(hop))
        lines.append(f'  p{index} -->|"{label}"| p{index + 1}')
    return "\n".join(lines) + "\n"


def render_svg(forecast: Forecast) -> str:
    """Render an SVG image, top down. The bar in a box shows how much of the time its workers are busy."""
    elements: list[str] = []
    top_px = _MARGIN_PX
    boxes = [*_make_boxes(forecast), _ProcessBox(SINK_NAME, (SINK_NAME,), None)]
    hops = [*_list_process_hops(forecast), None]
    for box, hop in zip(boxes, hops, strict=True):
        elements += _draw_box(box, top_px)
        top_px += box.height_px
        if hop is not None:
            elements += _draw_hop(_make_hop_label(hop), top_px)
            top_px += _HOP_LENGTH_PX
    height_px = top_px + _MARGIN_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height_px}" width="{_WIDTH_PX}" '
        f'height="{height_px}" font-family="monospace" font-size="12">\n'
        f"<title>{escape(forecast.name)}</title>\n"
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(elements) + "\n</svg>\n"
    )


def _make_boxes(forecast: Forecast) -> Iterator[_ProcessBox]:
    stages_by_process: dict[str, list[StageForecast]] = {}
    for stage in forecast.stages:
        stages_by_process.setdefault(stage.process, []).append(stage)
    work_ns = {name: _compute_work_ns(stages) for name, stages in stages_by_process.items()}
    longest_ns = max(*work_ns.values(), 1.0)
    for name, stages in stages_by_process.items():
        workers = stages[0].workers
        lines = (
            " + ".join(stage.name for stage in stages),
            f"{workers} worker{'' if workers == 1 else 's'}, {format_ns(work_ns[name] * workers)} per item",
            format_bytes(stages[0].memory_bytes * workers),
        )
        yield _ProcessBox(name, lines, work_ns[name] / longest_ns, is_bottleneck=name == forecast.limited_by)


def _compute_work_ns(stages: list[StageForecast]) -> float:
    """The work of a process per source item, divided by its workers, in ns."""
    return sum(stage.run_ns * stage.items_per_source_item for stage in stages) / stages[0].workers


def _list_process_hops(forecast: Forecast) -> list[HopForecast]:
    return [hop for hop in forecast.hops if hop.mode != "local"]


def _make_hop_label(hop: HopForecast) -> tuple[str, ...]:
    """Label a hop with its payload and mode, such as `image 602 kB: shared memory`, and the cost per message."""
    if hop.cost is None:
        return ("no message seen",)
    largest = next((piece for piece in hop.pieces if piece.mode != "pickle"), None)
    name, size = ("", hop.pickle_bytes) if largest is None else (f"{largest.name} ", largest.mean_bytes)
    mode = (hop.pickle_mode if largest is None else largest.mode).replace("_", " ")
    return f"{name}{format_bytes(size)}: {mode}", f"{format_ns(hop.cost.as_sent_ns)} per message"


def _escape_mermaid(text: str) -> str:
    """Escape a text for a quoted Mermaid label."""
    return text.replace("&", "&amp;").replace('"', "#quot;").replace("<", "&lt;")


def _draw_box(box: _ProcessBox, top_px: int) -> Iterator[str]:
    colour = "#c2410c" if box.is_bottleneck else "#334155"
    yield (
        f'<rect x="{_MARGIN_PX}" y="{top_px}" width="{_BOX_WIDTH_PX}" height="{box.height_px}" rx="6" fill="#f8fafc" '
        f'stroke="{colour}" stroke-width="{2 if box.is_bottleneck else 1}"/>'
    )
    x_px = _MARGIN_PX + _PADDING_PX
    for index, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if index == 0 else ""
        y_px = top_px + _PADDING_PX + _LINE_HEIGHT_PX * index + _LINE_HEIGHT_PX * 0.7
        yield f'<text x="{x_px}" y="{y_px:.0f}" fill="#0f172a"{weight}>{_truncate_line(line)}</text>'
    if box.utilization is not None:
        width_px = round(box.utilization * (_BOX_WIDTH_PX - 2 * _PADDING_PX))
        bar_y_px = top_px + box.height_px - _BAR_HEIGHT_PX - 3
        yield f'<rect x="{x_px}" y="{bar_y_px}" width="{width_px}" height="{_BAR_HEIGHT_PX}" rx="2" fill="{colour}"/>'


def _draw_hop(lines: tuple[str, ...], top_px: int) -> Iterator[str]:
    x_px = _MARGIN_PX + _BOX_WIDTH_PX // 2
    end_px = top_px + _HOP_LENGTH_PX
    yield f'<path d="M{x_px} {top_px} V{end_px - 7}" stroke="#334155" fill="none"/>'
    yield f'<path d="M{x_px - 5} {end_px - 8} L{x_px} {end_px} L{x_px + 5} {end_px - 8} Z" fill="#334155"/>'
    for index, line in enumerate(lines):
        y_px = top_px + _HOP_LENGTH_PX / 2 + (index - len(lines) / 2) * _LINE_HEIGHT_PX + _LINE_HEIGHT_PX * 0.7
        yield f'<text x="{x_px + 14}" y="{y_px:.0f}" fill="#475569">{escape(line)}</text>'


def _truncate_line(line: str) -> str:
    max_chars = int((_BOX_WIDTH_PX - 2 * _PADDING_PX) / _CHARACTER_WIDTH_PX)
    return escape(line if len(line) <= max_chars else f"{line[: max_chars - 1]}…")
