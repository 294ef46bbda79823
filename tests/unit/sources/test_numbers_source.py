"""NumbersSource yields whole numbers."""

import pytest

from stagepipe.core import build_target


def test_it_counts_from_zero():
    source = build_target("stagepipe.sources.numbers", {"count": 3})
    assert list(source) == [0, 1, 2]
    assert (len(source), source[2]) == (3, 2)


def test_an_index_beyond_the_end_raises():
    with pytest.raises(IndexError):
        build_target("stagepipe.sources.numbers", {"count": 3})[3]


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count is -1"):
        build_target("stagepipe.sources.numbers", {"count": -1})
