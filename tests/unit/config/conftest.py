import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path):
    """A folder with `my_ops.py` and `my_models.py`; importing `my_ops.py` raises."""
    for name in ("my_ops.py", "my_models.py"):
        shutil.copy(Path(__file__).parent / "broken" / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def write(folder):
    """A function that writes a config into the folder and returns its path."""

    def write(text, name="pipeline.yaml"):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
