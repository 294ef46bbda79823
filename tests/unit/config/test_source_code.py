"""Targets are resolved through source files, without importing them.

Constants that a class has as attributes are read from its source, which is never imported.
"""

import textwrap
from pathlib import Path

import pytest

from stagepipe.config import load
from stagepipe.config.source_code import DefinitionLookup, ModuleFinder, read_class_attribute
from stagepipe.core import ConfigError
from stagepipe.stages import Batch

FILES = {
    "lib/__init__.py": "from .ops import *\nfrom .ops import decode as read_image\nfrom . import more\n"
    "try:\n    from .fast import speedy\nexcept ImportError:\n    speedy = None\nalias = read_image\n",
    "lib/ops.py": "import functools\n__all__ = ['decode']\ndef decode(item, quality=1): ...\ndef _hidden(item): ...\n"
    "@functools.wraps(decode)\ndef wrapped(item, a): ...\n@mystery\ndef odd(item): ...\n",
    "lib/more.py": "from lib.ops import decode\nfrom typing import NamedTuple\nimport enum\n"
    "class Meta(type): ...\nclass Made(metaclass=Meta):\n    def __init__(self, a): ...\n"
    "class Deep:\n    def __init__(self, size): ...\n    def __call__(self, x): ...\n    @classmethod\n"
    "    def load(cls, name, *, strict=True): ...\nclass Deeper(Deep): ...\nclass Point(NamedTuple):\n    x: int\n",
    "lib/lazy.py": "def __getattr__(name): ...\n",
    "lib/made.py": "globals()['thing'] = 1\n",
    "lib/kinds.py": "from typing import Literal\nMode = Literal['quick', 'exact', 3, False]\n"
    "Size = int | tuple[int, int]\n",
    "lib/typed.py": """
import os, typing as t
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional, Union
from lib.kinds import Mode, Size
from lib.unknown import Strange
def scale(item, by: 'Optional[float]', mode: Mode = 'quick', size: Size = 1, names: Sequence[str] = (),
          path: str | os.PathLike[str] = '', folder: Path = None, pairs: list[tuple[int, str]] = (),
          options: t.Mapping[str, Annotated[int, 'x']] = {}, many: Union[int, list[Strange]] = 0, count: int = None,
          odd: Strange | None = None, call: Callable[[], int] = int, any_one: Any = 0, own: 'int |' = 0): ...
class Base:
    def __init__(self, size: int, fill: str = ''): ...
    def __call__(self, item): ...
class Forwards(Base):
    def __init__(self, name: str = '', **options):
        super().__init__(3, **options)
class Passes(Forwards):
    def __init__(self, **options):
        options.setdefault('fill', '')
        super().__init__(**options)
class Last:
    def __init__(self, size: int): ...
    def __call__(self, item): ...
class Closed(Last):
    def __init__(self, **options):
        super().__init__(**options)
""",
    "circle_a.py": "from circle_b import *\nfrom circle_b import there\n",
    "circle_b.py": "from circle_a import *\nfrom circle_a import there\n",
    "broken.py": "def decode(item):\n    return item +\n",
    "uses_broken.py": "from broken import decode\n",
}


@pytest.fixture
def check_stage(folder, write):
    """A function that returns the error message for one stage, "" if there is none."""
    (folder / "lib").mkdir()
    for name, text in FILES.items():
        write(text, name)

    def check_stage(uses, arguments=None, **keys):
        stage = {"name": "a", "uses": uses, "with": arguments or {}, **keys}
        path = write(f"name: p\nsource: {{uses: my_ops.read}}\nstages: [{stage!r}]\n".replace("None", "null"))
        try:
            load(path)
        except ConfigError as error:
            return str(error)
        return ""

    return check_stage


@pytest.mark.parametrize(
    "uses,arguments,fragment",
    [
        ("lib.decode", {"qualty": 1}, "did you mean `quality`?"),
        ("lib.read_image", {"qualty": 1}, "did you mean `quality`?"),
        ("lib.alias", {"qualty": 1}, "did you mean `quality`?"),
        ("lib.more.decode", {"qualty": 1}, "did you mean `quality`?"),
        ("lib.ops:decode", {"qualty": 1}, "did you mean `quality`?"),
        ("./lib/ops.py:decode", {"qualty": 1}, "did you mean `quality`?"),
        ("lib.decod", {}, "did you mean `decode`?"),
        ("lib.opps.decode", {}, "did you mean `ops`?"),
        ("lib.more.Deeper", {}, "needs the argument `size`"),
        ("lib.more.Deep.load", {}, "needs the argument `name`"),
        ("lib.more.Deep.lod", {}, "did you mean `load`?"),
        ("lib.more", {}, "is a module"),
        ("broken.decode", {}, "broken.py:2:18: SyntaxError"),
        ("uses_broken.decode", {}, "broken.py:2:18: SyntaxError"),
        ("json.lods", {}, "did you mean `load"),
        ("torchvision.transforms.v2.RandomCrop", {"sise": 1}, "did you mean `size`?"),
        ("lib.typed.scale", {"by": "2"}, "`by` of `lib.typed.scale`: expected a number, found the string `2`"),
        ("lib.typed.scale", {"by": 1, "mode": "exakt"}, "did you mean `exact`?"),
        ("lib.typed.scale", {"by": 1, "mode": 4}, "expected 3, false or one of `quick`, `exact`, found 4"),
        ("lib.typed.scale", {"by": 1, "size": [1, 2, 3]}, "expected a whole number or a list of 2 whole numbers"),
        ("lib.typed.scale", {"by": 1, "names": 3}, "expected a string or a list of strings, found 3"),
        ("lib.typed.scale", {"by": 1, "folder": 3}, "`folder` of `lib.typed.scale`: expected a string"),
        ("lib.typed.scale", {"by": 1, "pairs": [[1, "a"], "b"]}, "`pairs[1]` of"),
        ("lib.typed.scale", {"by": 1, "options": {"a": "b"}}, "`options.a` of `lib.typed.scale`"),
        ("lib.typed.scale", {"by": 1, "many": "b"}, "expected a whole number or a list"),
        ("lib.typed.Forwards", {"size": 1}, "has no argument `size`"),
        ("lib.typed.Forwards", {"fill": 3}, "`fill` of `lib.typed.Forwards`: expected a string, found 3"),
        ("lib.typed.Closed", {}, "needs the argument `size`"),
        ("lib.typed.Closed", {"size": 1, "other": 1}, "has no argument `other`"),
        ("stagepipe.sinks.npy", {"path": "out", "shard_itms": 1}, "did you mean `shard_items`?"),
    ],
)
def test_mistakes_are_found(check_stage, uses, arguments, fragment):
    assert fragment in check_stage(uses, arguments)


@pytest.mark.parametrize(
    "uses,mapping,fragment",
    [
        ("lib.decode", {"itm": "path"}, "`lib.decode` has no argument `itm`"),
        ("stagepipe.stages.video.DecodeClips", {"path": "path"}, "DecodeClips` has no argument `path`"),
        ("stagepipe.stages.video.DecodeClips", {"data": "path"}, ""),
        ("torch.nn.Identity", {"anything": "path"}, ""),
    ],
)
def test_a_field_is_mapped_to_an_argument_that_the_stage_has(check_stage, uses, mapping, fragment):
    message = check_stage(uses, field=mapping)
    assert (fragment in message) if fragment else not message


@pytest.mark.parametrize(
    "uses,arguments",
    [
        ("lib.decode", {"quality": 1}),
        ("lib.speedy", {"anything": 1}),
        ("lib.ops.odd", {"anything": 1}),
        ("lib.more.Made", {"other": 1}),
        ("lib.more.Point", {"y": 1}),
        ("lib.more.Deep", {"size": 1}),
        ("lib.more.Deep.load", {"name": "x", "strict": False}),
        ("lib.lazy.whatever", {}),
        ("lib.made.thing", {}),
        ("circle_a.there", {}),
        ("math.sqrt", {}),
        ("builtins.abs", {}),
        ("numpy.ascontiguousarray", {}),
        ("torch.relu", {}),
        ("torch.nn.Identity", {}),
        ("torchvision.transforms.v2.functional.horizontal_flip", {}),
        ("torchvision.transforms.v2.Resize", {"size": 3, "antialias": True}),
        ("albumentations.HorizontalFlip", {"p": 0.5}),
        (
            "albumentations.Compose",
            {"transforms": [{"uses": "albumentations.Resize", "with": {"height": 1, "width": 1}}]},
        ),
        ("transformers.AutoTokenizer.from_pretrained", {"pretrained_model_name_or_path": "x", "revision": "main"}),
        ("PIL.Image.open", {}),
        ("lib.typed.scale", {"by": None, "mode": False, "size": [1, 2], "names": "a", "path": "b", "folder": "c"}),
        ("lib.typed.scale", {"by": True, "pairs": [[1, "a"]], "options": {"a": 1}, "many": ["b"], "count": None}),
        ("lib.typed.scale", {"by": 1, "odd": 3, "call": 4, "any_one": 5, "own": "a", "folder": None}),
        ("lib.typed.scale", {"by": {"uses": "math.sqrt", "with": {}}, "names": [{"uses": "math.sqrt"}]}),
        ("lib.typed.Forwards", {"name": "a", "fill": "b"}),
        ("lib.typed.Passes", {"name": 3, "size": "a"}),
    ],
)
def test_valid_and_unknown_targets_pass(check_stage, uses, arguments):
    assert check_stage(uses, arguments) == ""


def test_fields_provide_arguments(check_stage):
    assert check_stage("my_ops.mix", {"weight": 1}, field={"left": "a", "right": "b"}) == ""
    assert "needs the argument `right`" in check_stage("my_ops.mix", {"weight": 1}, field={"left": "a"})


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
