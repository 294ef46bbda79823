"""numbers: a source of whole numbers."""

import pytest

from stagepipe.core.targets import build


def test_it_counts_from_nought():
    source = build("stagepipe.sources.numbers", {"count": 3})
    assert list(source) == [0, 1, 2]
    assert (len(source), source[2]) == (3, 2)


def test_it_ends():
    with pytest.raises(IndexError):
        build("stagepipe.sources.numbers", {"count": 3})[3]


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count is -1"):
        build("stagepipe.sources.numbers", {"count": -1})
