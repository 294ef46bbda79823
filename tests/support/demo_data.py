"""The data that the configs read, made by the scripts that they name, in a small number."""

import runpy
from pathlib import Path

from tests.support.paths import ROOT


def make_demo_data(folder: Path) -> Path:
    """Make 22 images, texts with their tokenizer, 5 recordings, 3 videos and a table of 500 rows; return the folder."""
    runpy.run_path(str(ROOT / "scripts/make_images.py"))["make"](folder / "images", 22, 17)
    tokenizer = runpy.run_path(str(ROOT / "scripts/make_tokenizer.py"))
    tokenizer["train"](tokenizer["write_texts"](folder / "text/texts"), folder / "text/tokenizer.json")
    for script, name, count in (("make_audio", "audio", 5), ("make_videos", "videos", 3), ("make_table", "table", 500)):
        runpy.run_path(str(ROOT / f"scripts/{script}.py"))["make"](folder / name, count, 17)
    return folder
