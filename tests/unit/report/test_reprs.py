"""A report has a short repr, the page's picture for notebooks, and `show`."""

import re
import sys
from types import SimpleNamespace

from stagepipe.report import build_report


def test_the_repr_is_the_outcome_and_the_verdict(rich_record):
    report = build_report(rich_record)
    assert repr(report).startswith("<Report thumbnails: finished, 1,000 items in, 1,000 out, 10 s; ")
    assert repr(report).endswith(f"{report.verdict.sentence}>")


def test_a_notebook_shows_the_pages_figures_and_picture(make):
    html = build_report(make.record(make.stage("source"), make.stage("<b>")))._repr_html_()
    assert html.startswith('<div class="stagepipe">')
    assert "&lt;b&gt;" in html
    assert "<b><b>" not in html
    assert not re.search(r"<script|<link|\b(src|href)=\"?http", html), "it needs nothing from outside"


def test_show_displays_it_in_a_notebook(rich_record, monkeypatch, capsys):
    shown = []
    shell = SimpleNamespace(kernel=None)
    package = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=shown.append))
    monkeypatch.setitem(sys.modules, "IPython", package)
    report = build_report(rich_record)
    report.show()
    assert shown == [report]
    report.show(verbose=True)
    assert "Phases per message" in capsys.readouterr().out


def test_show_prints_all_of_the_report(rich_record, capsys):
    report = build_report(rich_record)
    report.show(verbose=True)
    shown = capsys.readouterr().out
    assert all(heading in shown for heading in ("Stages", "Hops", "Failures", "Phases per message"))


def test_show_prints_the_stages_and_the_verdict(rich_record, capsys):
    report = build_report(rich_record)
    report.show()
    shown = capsys.readouterr().out
    assert report.verdict.sentence.split()[0] in shown
    assert "show(verbose=True)" in shown
    assert "Phases per message" not in shown
