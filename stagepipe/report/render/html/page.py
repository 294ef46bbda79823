"""The HTML file, and the part of it that a notebook shows. Pure."""

from __future__ import annotations

from importlib.resources import files

from stagepipe.report.model import Report
from stagepipe.report.render.html.markup import Markup, element, join
from stagepipe.report.render.html.sections import describe_run, make_sections, make_summary


def render_html(report: Report) -> str:
    """Return the report as one HTML page, which needs no network.

    >>> Path("report.html").write_text(render_html(report), encoding="utf-8")  # doctest: +SKIP
    """
    toggle = element("button", "Light / dark", id="theme", type="button", hidden=True)
    head = join(
        (
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"{report.name}: report of a run"),
            element("style", _read("summary.css"), _read("page.css")),
        )
    )
    main = element("main", make_summary(report), *make_sections(report))
    script = element("script", _read("script.js"))
    body = element("body", _make_header(report, toggle), main, script, class_="stagepipe")
    return f"<!DOCTYPE html>\n{element('html', element('head', head), body, lang='en')}\n"


def render_notebook(report: Report) -> str:
    """Return the figures, the verdict and the picture of the pipeline as a fragment for a notebook.

    Its style names its elements only, and needs no script. It follows the theme of Jupyter, VS Code and Colab.

    >>> from IPython.display import HTML  # doctest: +SKIP
    >>> HTML(render_notebook(report))  # doctest: +SKIP
    """
    content = join((_make_header(report), make_summary(report)))
    return element("div", element("style", _read("summary.css")), content, class_="stagepipe")


def _make_header(report: Report, *buttons: Markup) -> Markup:
    note = element("span", describe_run(report.run, report.stages), class_="note")
    return element("header", element("h1", report.name), note, *buttons)


def _read(name: str) -> Markup:
    return Markup(files("stagepipe.report.render.html").joinpath(name).read_text(encoding="utf-8"))
