"""A forecast has a short repr and a small table for notebooks."""

from html import unescape


def test_the_repr_is_the_rate_and_the_bottleneck(forecast):
    assert repr(forecast).startswith("<Forecast demo: ")
    assert repr(forecast).endswith(f"; {forecast.bottleneck}>")


def test_the_table_has_the_stages_and_the_advice(forecast):
    html = unescape(forecast._repr_html_())
    assert all(f">{stage.name}<" in html or f">+ {stage.name}<" in html for stage in forecast.stages)
    assert all(override in html for advice in forecast.advice for override in advice.overrides)
