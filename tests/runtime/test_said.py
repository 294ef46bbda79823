"""What an order point says of its outputs comes back, costs next to nothing without skips, and fits a packet."""

import pickle

from stagepipe.core import Cursor, Skip
from stagepipe.runtime.said import Said, pack_said, unpack_said


def test_it_comes_back():
    said = Said(Cursor(Cursor(None, 7), 3, (2, 1)), 4, 9, frozenset({Skip("decode", (5,)), Skip("cut", (6, 1))}))
    assert unpack_said(pack_said(said)) == said
    assert unpack_said(b"") == Said()


def test_without_skips_it_is_a_few_bytes_more_than_the_cursor():
    after = Cursor(None, 512, (511,))
    assert len(pack_said(Said(after, 256, 512))) <= len(pickle.dumps(after, 5)) + 12


def test_some_hundred_skips_fit_and_more_stay_behind():
    def with_skips(count: int) -> Said:
        skips = frozenset(Skip("decode", (number * 3,)) for number in range(count))
        return Said(Cursor(None, 0, None, 2, skips), 0, 5000, skips)

    assert unpack_said(pack_said(with_skips(500))) == with_skips(500)
    assert unpack_said(pack_said(with_skips(50_000))) == Said(Cursor(None, 0, None, 2), 0, 5000)
