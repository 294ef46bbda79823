"""The lineage of an order point's output survives packing, is small without skips, and fits a packet."""

import msgspec

from stagepipe.core import Cursor, ImposedSkip
from stagepipe.runtime.protocol import OutputLineage, pack_lineage, unpack_lineage


def test_a_lineage_survives_packing():
    lineage = OutputLineage(
        Cursor(Cursor(None, 7), 3, (2, 1)), 4, 9, frozenset({ImposedSkip("decode", (5,)), ImposedSkip("cut", (6, 1))})
    )
    assert unpack_lineage(pack_lineage(lineage)) == lineage
    assert unpack_lineage(b"") == OutputLineage()


def test_a_lineage_without_skips_is_a_few_bytes_larger_than_its_cursor():
    cursor = Cursor(None, 512, (511,))
    assert len(pack_lineage(OutputLineage(cursor, 256, 512))) <= len(msgspec.msgpack.encode(cursor)) + 12


def test_hundreds_of_skips_fit_and_more_are_dropped():
    def with_skips(count: int) -> OutputLineage:
        skips = frozenset(ImposedSkip("decode", (number * 3,)) for number in range(count))
        return OutputLineage(Cursor(None, 0, None, 2, skips), 0, 5000, skips)

    assert unpack_lineage(pack_lineage(with_skips(500))) == with_skips(500)
    assert unpack_lineage(pack_lineage(with_skips(50_000))) == OutputLineage(Cursor(None, 0, None, 2), 0, 5000)
