"""The description of the code changes with each file of the user that the code needs."""

import sys

import pytest

from stagepipe.engine.code_versions import describe_code


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders of the import path: a package without `__init__`, and a module beside it."""
    for name in ("project/decoders", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/decoders/decode.py").write_text("import helper_module\nimport decoders.constants\n")
    (tmp_path / "project/decoders/constants.py").write_text("SIDE = 1\n")
    (tmp_path / "other/helper_module.py").write_text("SIDE = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "project"), str(tmp_path / "other")])
    return tmp_path


@pytest.mark.parametrize("edited", ["project/decoders/constants.py", "other/helper_module.py"])
def test_a_module_of_the_import_path_counts(folders, edited):
    before = describe_code([folders / "project/decoders/decode.py"])
    assert describe_code([folders / "project/decoders/decode.py"]) == before
    (folders / edited).write_text("SIDE = 2\n")
    assert describe_code([folders / "project/decoders/decode.py"]) != before


def test_an_installed_package_counts_by_its_version(tmp_path):
    (tmp_path / "ops.py").write_text("import psutil\n")
    lines = describe_code([tmp_path / "ops.py"])
    assert "version.psutil" in lines
    assert [line.split()[0] for key, line in lines.items() if key.startswith("code.")] == ["ops.py"]
