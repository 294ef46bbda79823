"""Target paths become what a stage calls; instances of a file's classes unpickle where the file is not loaded."""

import enum
import functools
import pickle
import subprocess
import sys

import pytest

from stagepipe.core import TargetError, build_target, import_target, is_generator, require_callable
from stagepipe.core.imports import import_file

OPS = """
import dataclasses
LOADS = []
LOADS.append(1)
CONSTANT = 7
def decode(item, quality=1):
    return item, quality
def halves(item):
    yield item
class Resize:
    def __init__(self, size, inner=None):
        self.size, self.inner = size, inner
    def __call__(self, item):
        return item * self.size
    @classmethod
    def load(cls, size):
        return cls(size + 100)
class Many:
    def __call__(self, item):
        yield item
@dataclasses.dataclass
class Point:
    x: int
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text(OPS, encoding="utf-8")
    (tmp_path / "broken_target.py").write_text("import surely_not_installed\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_all_spellings_of_a_path_name_the_same_object(folder):
    decode = import_target("./ops.py:decode", folder)
    assert import_target("./ops.py:decode", folder) is decode
    assert import_target(f"{folder}/ops.py:decode") is decode
    assert import_target("os.path.join") is import_target("os.path:join")
    assert import_target("xml.etree.ElementTree.Element").__name__ == "Element"


def test_the_folder_comes_after_the_standard_library(folder):
    (folder / "colorsys.py").write_text("raise RuntimeError\n", encoding="utf-8")
    (folder / "target_ops_beside.py").write_text(OPS, encoding="utf-8")
    assert import_target("target_ops_beside.decode", folder)(1) == (1, 1)
    assert import_target("colorsys.rgb_to_hsv", folder)


@pytest.mark.parametrize(
    "path,message",
    [
        ("./ops.py:decod", "ops.py has no `decod`; did you mean `decode`?"),
        ("./opps.py:decode", "did you mean `ops.py`?"),
        ("./ops.py", "names a file but no object in it"),
        ("os.pth", "did you mean `path`?"),
        ("no_such_package.name", "no module named `no_such_package`"),
        ("no such", "is not an import path"),
        ("__main__.decode", "the running script itself"),
        ("./broken_target.py:x", "No module named 'surely_not_installed'"),
        ("broken_target.x", "importing `broken_target` failed"),
    ],
)
def test_a_wrong_path_is_named(folder, path, message):
    with pytest.raises(TargetError) as caught:
        import_target(path, folder)
    assert message in str(caught.value)


def test_the_running_script_is_not_imported_again(folder, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "script_again.py"), raising=False)
    (folder / "script_again.py").write_text("raise SystemExit\n", encoding="utf-8")
    for path in ("script_again.decode", "./script_again.py:decode"):
        with pytest.raises(TargetError, match="the running script itself"):
            import_target(path, folder)


def test_targets_are_built(folder):
    assert build_target("./ops.py:decode", {}, folder)(3) == (3, 1)
    assert build_target("./ops.py:decode", {"quality": 5}, folder)(3) == (3, 5)
    assert build_target("./ops.py:Resize", {"size": 2}, folder)(3) == 6
    assert build_target("./ops.py:Resize.load", {"size": 2}, folder).size == 102
    assert build_target(len)("abc") == 3
    assert build_target("http:HTTPStatus.OK") is __import__("http").HTTPStatus.OK


def test_arguments_are_built_first_at_any_depth(folder):
    inner = {"uses": "./ops.py:Resize", "with": {"size": 2, "inner": [{"a": ({"uses": "./ops.py:decode"},)}]}}
    outer = build_target("./ops.py:Resize", {"size": 1, "inner": [inner, {"plain": 1}]}, folder)
    assert outer.inner[0].inner[0]["a"][0] is import_target("./ops.py:decode", folder)
    assert outer.inner[1] == {"plain": 1}
    assert build_target("./ops.py:Resize", {"size": {"uses": "./ops.py:CONSTANT"}}, folder).size == 7


def test_invalid_targets_raise(folder):
    with pytest.raises(TargetError, match="is a module"):
        build_target("os.path")
    with pytest.raises(TargetError, match="takes no arguments"):
        build_target("./ops.py:CONSTANT", {"a": 1}, folder)
    with pytest.raises(TargetError, match="takes only `with`"):
        build_target("./ops.py:decode", {"a": {"uses": "len", "wiht": {}}}, folder)
    with pytest.raises(TypeError) as caught:
        build_target("./ops.py:Resize", {}, folder)
    assert "./ops.py:Resize" in caught.value.__notes__[0]
    with pytest.raises(TargetError, match="cannot be called with an item"):
        require_callable(build_target("./ops.py:Point", {"x": 1}, folder), "./ops.py:Point")


def test_instances_pickle_to_a_process_that_has_not_loaded_the_file(folder):
    point = build_target("./ops.py:Point", {"x": 4}, folder)
    code = "import sys, pickle; import stagepipe.core.imports; print(pickle.load(sys.stdin.buffer).x)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(point), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"4\n", b"")
    assert import_file("./ops.py", folder).LOADS == [1]


def test_a_worker_needs_neither_pydantic_nor_yaml():
    code = "import sys, stagepipe.core.imports; print([m for m in ('pydantic', 'yaml', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_generators_are_recognized(folder):
    halves = import_target("./ops.py:halves", folder)
    many = build_target("./ops.py:Many", {}, folder)
    assert is_generator(halves)
    assert is_generator(functools.partial(functools.partial(halves), 1))
    assert is_generator(many)
    assert not is_generator(build_target("./ops.py:Resize", {"size": 1}, folder))
    assert not is_generator(len)
    assert not is_generator(enum.Enum)
