"""An outlook as a picture: Mermaid text, and a small SVG of boxes and arrows. Pure, and without a library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.model import SINK
from stagepipe.plan.outlook.model import Hop, Outlook, Stage

_WIDTH, _BOX_WIDTH, _LEFT = 560, 300, 20  # pixels, as are all that follow
_LINE, _PAD, _GAP, _BAR = 19, 12, 64, 5
_CHARACTER = 6.6
"""Width of a character of 12 px monospace, about."""


@dataclass(frozen=True)
class _Box:
    """A process: the lines in it, and the share of the time that it works (None: not known)."""

    name: str
    lines: tuple[str, ...]
    use: float | None
    limit: bool = False

    @property
    def height(self) -> int:
        return len(self.lines) * _LINE + 2 * _PAD


def mermaid(outlook: Outlook) -> str:
    """The pipeline as a Mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html), a line a box and a hop.

    >>> print(mermaid(outlook))  # doctest: +SKIP
    flowchart TD
      p0["source<br/>1 worker, 190 us an item"]
      p0 -->|"62 kB<br/>pipe"| p1
    """
    boxes = [*_boxes(outlook), _Box(SINK, (SINK,), None)]
    lines = ["flowchart TD"]
    lines += [f'  p{number}["{"<br/>".join(_quoted(line) for line in box.lines)}"]' for number, box in enumerate(boxes)]
    for number, hop in enumerate(_between(outlook)):
        label = "<br/>".join(_quoted(line) for line in _label(hop))
        lines.append(f'  p{number} -->|"{label}"| p{number + 1}')
    return "\n".join(lines) + "\n"


def svg(outlook: Outlook) -> str:
    """The pipeline as an SVG picture, top down. A bar under a box is the share of the time that its workers work."""
    parts: list[str] = []
    top = _LEFT
    boxes = [*_boxes(outlook), _Box(SINK, (SINK,), None)]
    hops = [*_between(outlook), None]
    for box, hop in zip(boxes, hops, strict=True):
        parts += _drawn_box(box, top)
        top += box.height
        if hop is not None:
            parts += _drawn_hop(_label(hop), top)
            top += _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + _LEFT}" width="{_WIDTH}" '
        f'height="{top + _LEFT}" font-family="monospace" font-size="12">\n'
        f"<title>{escape(outlook.name)}</title>\n"
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _boxes(outlook: Outlook) -> Iterator[_Box]:
    by_process: dict[str, list[Stage]] = {}
    for stage in outlook.stages:
        by_process.setdefault(stage.process, []).append(stage)
    times = {name: _work_ns(stages) for name, stages in by_process.items()}
    longest_ns = max(*times.values(), 1.0)
    for name, stages in by_process.items():
        workers = stages[0].workers
        lines = (
            " + ".join(stage.name for stage in stages),
            f"{workers} worker{'' if workers == 1 else 's'}, {format_ns(times[name] * workers)} an item",
            format_bytes(stages[0].memory_bytes * workers),
        )
        yield _Box(name, lines, times[name] / longest_ns, limit=name == outlook.limited_by)


def _work_ns(stages: list[Stage]) -> float:
    """What one of a process's workers works for an item of the source."""
    return sum(stage.run_ns * stage.items for stage in stages) / stages[0].workers


def _between(outlook: Outlook) -> list[Hop]:
    return [hop for hop in outlook.hops if hop.mode != "local"]


def _label(hop: Hop) -> tuple[str, ...]:
    """What a hop carries and how: `image 602 kB: shared memory`, and the message's cost."""
    if hop.cost is None:
        return ("nothing seen",)
    largest = next((piece for piece in hop.pieces if piece.mode != "pickle"), None)
    name, size = ("", hop.pickle_bytes) if largest is None else (f"{largest.name} ", largest.nbytes)
    mode = (hop.pickle_mode if largest is None else largest.mode).replace("_", " ")
    return f"{name}{format_bytes(size)}: {mode}", f"{format_ns(hop.cost.ns)} a message"


def _quoted(text: str) -> str:
    """As Mermaid takes a text between quotation marks."""
    return text.replace("&", "&amp;").replace('"', "#quot;").replace("<", "&lt;")


def _drawn_box(box: _Box, top: int) -> Iterator[str]:
    colour = "#c2410c" if box.limit else "#334155"
    yield (
        f'<rect x="{_LEFT}" y="{top}" width="{_BOX_WIDTH}" height="{box.height}" rx="6" fill="#f8fafc" '
        f'stroke="{colour}" stroke-width="{2 if box.limit else 1}"/>'
    )
    for number, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        y = top + _PAD + _LINE * number + _LINE * 0.7
        yield f'<text x="{_LEFT + _PAD}" y="{y:.0f}" fill="#0f172a"{weight}>{_cut(line)}</text>'
    if box.use is not None:
        width = round(box.use * (_BOX_WIDTH - 2 * _PAD))
        y = top + box.height - _BAR - 3
        yield f'<rect x="{_LEFT + _PAD}" y="{y}" width="{width}" height="{_BAR}" rx="2" fill="{colour}"/>'


def _drawn_hop(lines: tuple[str, ...], top: int) -> Iterator[str]:
    middle, end = _LEFT + _BOX_WIDTH // 2, top + _GAP
    yield f'<path d="M{middle} {top} V{end - 7}" stroke="#334155" fill="none"/>'
    yield f'<path d="M{middle - 5} {end - 8} L{middle} {end} L{middle + 5} {end - 8} Z" fill="#334155"/>'
    for number, line in enumerate(lines):
        y = top + _GAP / 2 + (number - len(lines) / 2) * _LINE + _LINE * 0.7
        yield f'<text x="{middle + 14}" y="{y:.0f}" fill="#475569">{escape(line)}</text>'


def _cut(line: str) -> str:
    most = int((_BOX_WIDTH - 2 * _PAD) / _CHARACTER)
    return escape(line if len(line) <= most else f"{line[: most - 1]}…")
