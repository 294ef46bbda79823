"""What a report offers, and what `auto` became: the inputs of a search."""

from dataclasses import replace

import msgspec

from stagepipe.config import load
from stagepipe.report import WhatIf
from stagepipe.tuning.session import list_auto_settings, list_offers
from tests.support.reports import make_report

SOURCE = {"uses": "stagepipe.sources.numbers", "with": {"count": 3}}
SAME = "tests.support.stages.same"


def offering(fix, *rows):
    report = make_report()
    return msgspec.structs.replace(report, verdict=msgspec.structs.replace(report.verdict, fix=fix), what_if=rows)


def row(gain, *overrides, reason=""):
    return WhatIf(kind="workers", change="", items_per_s=1.0, gain=gain, overrides=overrides, ineligible_reason=reason)


def test_the_fix_comes_first_and_then_the_other_rows_by_their_gain():
    rows = (row(0.1, "window=9"), row(0.5, "stages.a.workers=2"), row(0.3))
    report = offering("stages.b.fuse=true stages.b.workers=null", *rows)
    assert list(list_offers(report)) == [
        ("stages.b.fuse=true", "stages.b.workers=null"),
        ("stages.a.workers=2",),
        ("window=9",),
    ]


def test_what_loses_or_may_not_be_offered_is_not_tried():
    report = offering("", row(-0.1, "window=1"), row(0.9, "order=any", reason="changes the order"))
    assert list(list_offers(report)) == []


def test_auto_becomes_numbers_at_the_places_where_it_was():
    stages = [
        {"name": "a", "uses": SAME, "workers": "auto"},
        {"name": "b", "uses": SAME, "fuse": "auto"},
        {"name": "c", "uses": SAME, "fuse": "auto"},
        {"name": "d", "uses": SAME, "workers": 2},
    ]
    sink = {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}, "workers": "auto"}
    spec = load({"source": SOURCE, "stages": stages, "sink": sink})
    a, b, c, d = spec.stages
    chosen = (replace(a, workers=3), replace(b, fuse=True), replace(c, fuse=False, workers=2), d)
    resolved = replace(spec, stages=chosen, sinks=(replace(spec.sinks[0], workers=4),))
    settings = list(list_auto_settings(spec, resolved))
    assert settings == [
        "stages.a.workers=3",
        "stages.b.fuse=true",
        "stages.b.workers=null",
        "stages.b.threads=null",
        "stages.c.fuse=false",
        "stages.c.workers=2",
        "sink.workers=4",
    ]
    again = load({"source": SOURCE, "stages": stages, "sink": sink}, settings)
    assert [(stage.workers, stage.fuse) for stage in again.stages] == [(3, False), (1, True), (2, False), (2, False)]
    assert again.sinks[0].workers == 4
