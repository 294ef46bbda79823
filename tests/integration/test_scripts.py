"""The scripts that make the data of the configs are repeatable, and keep existing files."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def images() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/make_images.py"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}


def test_the_same_seed_gives_the_same_files(images: dict[str, Any], tmp_path: Path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        images["make"](tmp_path / name, 13, seed)
    assert len(contents(tmp_path / "a")) == 13
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_the_images_are_jpeg_files_of_many_sizes(images: dict[str, Any], tmp_path: Path):
    images["make"](tmp_path, 22, 1)
    sizes = set()
    for path in tmp_path.rglob("*.jpg"):
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert all(200 <= side <= 420 for side in image.size)
            sizes.add(image.size)
    assert len(sizes) > 15


def test_existing_files_are_kept(images: dict[str, Any], tmp_path: Path):
    images["make"](tmp_path, 11, 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    assert "there already" in images["make"](tmp_path, 11, 1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")} == before


def test_incomplete_or_different_data_is_made_again(images: dict[str, Any], tmp_path: Path):
    images["make"](tmp_path, 22, 1)
    next(tmp_path.rglob("*.jpg")).unlink()
    assert "made 22" in images["make"](tmp_path, 22, 1)
    assert "made 11" in images["make"](tmp_path, 11, 1)
    assert len(contents(tmp_path)) == 11
    (tmp_path / "manifest.json").write_text("{")
    assert "made 11" in images["make"](tmp_path, 11, 1)
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"count": 11, "seed": 1}


def test_a_missing_package_is_reported_with_a_hint(images: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"skimage is not installed.*pip install 'scikit-image>=[\d.]+'"):
        images["photo_paths"]()
