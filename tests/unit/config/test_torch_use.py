"""Whether a config uses torch is read from the modules of its targets, never from a data file that it names."""

import pytest

from stagepipe.config import load


@pytest.mark.parametrize(
    "name, contents", [("words.csv", "2026-01-01,007\n"), ("broken.py", "def :\n"), ("large.bin", "\0")]
)
def test_a_data_file_in_the_arguments_is_not_read_as_python(name, contents, tmp_path, monkeypatch):
    (tmp_path / name).write_text(contents)
    monkeypatch.chdir(tmp_path)
    source = {"uses": "stagepipe.sources.files", "with": {"glob": f"./{name}"}}
    assert not load({"source": source}).uses_torch


def test_a_target_that_imports_torch_is_found(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text("import torch\n\n\ndef same(item):\n    return item\n")
    monkeypatch.chdir(tmp_path)
    source = {"uses": "stagepipe.sources.numbers", "with": {"count": 1}}
    assert load({"source": source, "stages": [{"name": "same", "uses": "./ops.py:same"}]}).uses_torch
    module = {"name": "m", "uses": "stagepipe.stages.model.Module", "with": {"module": {"uses": "fractions.Fraction"}}}
    assert load({"source": source, "stages": [module]}).uses_torch
