"""A report has a short repr, a small table for notebooks, and `show`."""

import re

from stagepipe.report import build_report


def test_the_repr_is_the_outcome_and_the_verdict(rich_record):
    report = build_report(rich_record)
    assert repr(report).startswith("<Report thumbnails: finished, 1,000 items in, 1,000 out, 10 s; ")
    assert repr(report).endswith(f"{report.verdict.sentence}>")


def test_the_table_has_the_stages_and_is_escaped(make):
    html = build_report(make.record(make.stage("source"), make.stage("<b>")))._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    assert [re.findall(r"<td[^>]*>(.*?)</td>", row)[0] for row in rows[1:]] == ["source", "&lt;b&gt;"]
    assert "<b>&lt;" not in html


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
