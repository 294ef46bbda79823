"""Builders and pipelines have short reprs, and small escaped tables for notebooks."""

import re

from stagepipe import defer, from_dataset, from_source
from tests.support.stages import Echo, double


def cells(html):
    return re.findall(r"<td[^>]*>(.*?)</td>", html)


def test_the_repr_of_a_builder_is_its_chain():
    builder = (
        from_source(range(3)).map(double, workers=2).map(defer(Echo, a=1)).filter(lambda n: n).with_options(seed=3)
    )
    expected = (
        "from_source(range(0, 3)).map(double, workers=2).map(defer(Echo, a=1)).filter(lambda).with_options(seed=3)"
    )
    assert repr(builder) == expected
    assert repr(from_dataset([1, 2], workers=2).map(double)) == "from_dataset([1, 2], workers=2).map(double)"


def test_long_arguments_are_shortened_and_objects_have_no_address():
    text = repr(from_source(list(range(1000))).map(Echo(), name="a" * 50).map_field("x" * 500, double))
    assert len(text) < 300
    assert "0x" not in text
    assert "Echo(...)" in text


def test_the_table_of_a_builder_is_escaped():
    html = from_source(["<script>"]).map(double).with_options(seed=3)._repr_html_()
    assert cells(html) == [
        "source",
        "from_source([&#x27;&lt;script&gt;&#x27;])",
        "double",
        ".map(double)",
        "options",
        ".with_options(seed=3)",
    ]


def test_a_pipeline_says_its_stages_and_its_state():
    pipeline = from_source(range(3)).map(double, workers=2).map(double, fuse=True).batch(2).open(inline=True)
    stages = "<Pipeline pipeline: source -> double (2) + double-2 -> batch"
    assert repr(pipeline) == f"{stages}; not started>"
    with pipeline:
        assert repr(pipeline) == f"{stages}; running>"
    assert repr(pipeline) == f"{stages}; closed>"
    assert cells(pipeline._repr_html_())[:6] == ["source", "range", "1", "double", "double", "2"]
