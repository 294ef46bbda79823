"""Constants that a class has as attributes are read from its source, which is never imported."""

import textwrap
from pathlib import Path

import pytest

from stagepipe.config.source_code import DefinitionLookup, ModuleFinder, read_class_attribute
from stagepipe.stages import Batch

SOURCE = """\
    from typing import ClassVar
    from stagepipe.stages import OrderPointStage
    from elsewhere import Unknown

    class Direct:
        order_point: ClassVar[bool] = True
        count = 2

    class Inherits(Direct):
        count = 3

    class Own(OrderPointStage):
        pass

    class Withdrawn(Own):
        order_point = False

    class OfUnknownBase(Unknown):
        order_point = True

    class Computed:
        order_point = bool(1)

    class Declared:
        order_point: bool

    def function(item):
        return item

    raise RuntimeError("imported")
    """


@pytest.fixture
def lookup(tmp_path: Path) -> DefinitionLookup:
    (tmp_path / "my_points.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    (tmp_path / "other_names.py").write_text("from my_points import Inherits as Renamed\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("class Broken\n", encoding="utf-8")
    return DefinitionLookup(ModuleFinder(tmp_path))


@pytest.mark.parametrize(
    "uses,expected",
    [
        ("my_points.Direct", True),
        ("./my_points.py:Inherits", True),
        ("other_names:Renamed", True),
        ("my_points.Own", True),
        ("my_points.Withdrawn", False),
        ("my_points.OfUnknownBase", True),
        ("my_points.Computed", None),
        ("my_points.Declared", None),
        ("my_points.function", None),
        ("my_points.missing", None),
        ("broken.Broken", None),
        ("no such path", None),
        ("./no_file.py:Name", None),
        (Batch, True),
        (Batch(2), True),
        (len, None),
    ],
)
def test_an_attribute_is_that_of_the_class_or_its_nearest_base(lookup, uses, expected):
    assert read_class_attribute(uses, "order_point", lookup) is expected


def test_the_nearest_value_counts(lookup):
    assert read_class_attribute("my_points.Inherits", "count", lookup) == 3
