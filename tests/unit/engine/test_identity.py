"""The description of the code changes with each file of the user that the code imports, and with no other."""

import sys

import pytest

from stagepipe.config import ModuleLocator
from stagepipe.engine import identity
from stagepipe.engine.identity import describe_code

FILES = {
    "project/decoders/decode.py": """
import helper_module
import decoders.constants, decoders.inner.deep
from decoders import by_name
from . import sibling
from .inner.deep import DEPTH
from whole import *
from kit.tools import cut

def decode(item):
    import late
    from importlib import import_module
    return import_module("written"), import_module("." + item, "decoders")
""",
    "project/decoders/constants.py": "",
    "project/decoders/by_name.py": "",
    "project/decoders/sibling.py": "",
    "project/decoders/unused.py": "",
    "project/decoders/inner/deep.py": "from ..portion import SIDE",
    "project/unused.py": "",
    "other/helper_module.py": "import second",
    "other/second.py": "import helper_module",
    "other/decoders/portion.py": "",
    "other/late.py": "",
    "other/written.py": "",
    "other/whole/__init__.py": "__all__ = ['listed']",
    "other/whole/listed.py": "",
    "other/whole/unlisted.py": "",
    "other/kit/__init__.py": "from .lazy import load",
    "other/kit/lazy.py": "",
    "other/kit/tools.py": "",
}
UNUSED = {"project/decoders/unused.py", "project/unused.py", "other/whole/unlisted.py"}
BEGIN = "project/decoders/decode.py"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders of the import path, which share a package without `__init__`."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "project"), str(tmp_path / "other")])
    return tmp_path


def describe(folder):
    return describe_code([folder / BEGIN], ModuleLocator(sys.path))


def test_two_files_of_one_name_that_exchange_their_contents_are_a_change(folders):
    paths = [folders / "project/decoders/by_name.py", folders / "other/kit/by_name.py"]
    (folders / "other/kit/tools.py").write_text("import kit.by_name")
    texts = ["SIDE = 1", "SIDE = 2"]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    before = describe(folders)
    for path, text in zip(paths, reversed(texts), strict=True):
        path.write_text(text)
    assert describe(folders) != before


def test_moved_code_is_unchanged(folders, monkeypatch):
    before = describe(folders)
    moved = folders / "moved"
    moved.mkdir()
    for name in ("project", "other"):
        (folders / name).rename(moved / name)
    monkeypatch.setattr(sys, "path", [path.replace(str(folders), str(moved)) for path in sys.path])
    assert describe(moved) == before


@pytest.mark.parametrize("edited", sorted(FILES))
def test_files_count_if_the_code_imports_them(folders, edited):
    before = describe(folders)
    assert describe(folders) == before
    with (folders / edited).open("a") as file:
        file.write("\nSIDE = 2\n")
    assert (describe(folders) == before) == (edited in UNUSED)
    assert not {"decoders", "helper_module", "kit", "whole"} & sys.modules.keys(), "nothing is imported"


def test_names_of_folders_do_not_count(folders, monkeypatch):
    before = describe(folders)
    moved = folders.with_name("moved")
    folders.rename(moved)
    monkeypatch.setattr(sys, "path", [*sys.path[:-2], str(moved / "project"), str(moved / "other")])
    assert describe(moved) == before


def test_installed_packages_count_by_their_version(tmp_path):
    (tmp_path / "ops.py").write_text("import json, psutil, stagepipe, yaml.nodes\n")
    lines = describe_code([tmp_path / "ops.py"], ModuleLocator(sys.path))
    assert "version.psutil" in lines
    assert [line.split()[0] for key, line in lines.items() if key.startswith("code.")] == ["ops.py"]


def test_a_file_with_a_syntax_error_counts(tmp_path):
    (tmp_path / "ops.py").write_text("import (\n")
    assert "code.0" in describe_code([tmp_path / "ops.py"], ModuleLocator(sys.path))


def test_a_neighbour_off_the_import_path_counts(tmp_path):
    (tmp_path / "ops.py").write_text("import neighbour_of_ops\n")
    (tmp_path / "neighbour_of_ops.py").write_text("")
    lines = describe_code([tmp_path / "ops.py"], ModuleLocator(sys.path))
    assert [line.split()[0] for key, line in lines.items() if key.startswith("code.")] == [
        "neighbour_of_ops.py",
        "ops.py",
    ]


def test_a_folder_of_many_files_is_not_read(folders):
    for number in range(200):
        inner = folders / f"project/decoders/data_{number}"
        inner.mkdir()
        for name in range(100):
            (inner / f"sample_{name}.py").touch()
    is_recording = True
    seen: list[str] = []

    def record(event, arguments):
        if (
            is_recording
            and event in {"open", "os.listdir", "os.scandir"}
            and str(arguments[0]).startswith(str(folders))
        ):
            seen.append(str(arguments[0]))

    sys.addaudithook(record)  # a hook cannot be removed
    try:
        describe(folders)
    finally:
        is_recording = False
    assert len(seen) < 5 * len(FILES), "each file twice, and the folders of the imports"
    assert not [path for path in seen if "data_" in path]


def test_too_many_files_are_refused(folders, monkeypatch):
    monkeypatch.setattr(identity, "MAX_FILES", 10)
    with pytest.raises(identity.TooManyFilesError, match="more than 10 files"):
        describe(folders)
    monkeypatch.setattr(identity, "MAX_FILES", len(FILES) - len(UNUSED))
    assert describe(folders)
