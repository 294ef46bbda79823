"""The HTML file: head, style, script, and the sections in the order in which a reader needs them. Pure."""

from __future__ import annotations

from importlib.resources import files

from stagepipe.report.model import Report
from stagepipe.report.render.html.charts import draw_patterns
from stagepipe.report.render.html.markup import Markup, element, join
from stagepipe.report.render.html.sections import make_sections, make_verdict


def render_html(report: Report) -> str:
    """Return the report as one HTML page, which needs no network.

    >>> Path("report.html").write_text(render_html(report), encoding="utf-8")  # doctest: +SKIP
    """
    title = f"{report.name}: report of a run"
    toggle = element("button", "Light / dark", id="theme", type="button", hidden=True)
    head = join(
        (
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", title),
            element("style", _read("style.css")),
        )
    )
    main = element("main", make_verdict(report), *make_sections(report))
    header = element("header", element("h1", title), toggle)
    body = element("body", draw_patterns(), header, main, element("script", _read("script.js")))
    return f"<!DOCTYPE html>\n{element('html', element('head', head), body, lang='en')}\n"


def _read(name: str) -> Markup:
    return Markup(files("stagepipe.report.render.html").joinpath(name).read_text(encoding="utf-8"))
