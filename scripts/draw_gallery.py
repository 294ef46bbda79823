"""Draw docs/pictures/gallery/: the output of each example of examples/, from a run on a small data set.

    python -m scripts.draw_gallery              # all pictures, some minutes on two CPUs
    python -m scripts.draw_gallery thumbnails   # one of them

Requires the packages of the examples: `pip install -e '.[demo,image,audio,video,text,table]' 'scipy>=1.11'`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.text import Text

from scripts.draw_report import record_terminal
from stagepipe import Pipeline
from stagepipe.report import from_json, render_brief

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures" / "gallery"
COUNTS = {"images": 600, "audio": 12, "videos": 6, "table": 400, "documents": 400}
MAX_BYTES = 60_000
WIDTH = 100  # characters
TIMEOUT_S = 300
PALETTE = np.array([(68, 119, 170), (238, 102, 119), (34, 136, 51), (204, 187, 68), (102, 204, 238)], np.uint8)
PADDING = (40, 40, 40)
SEPARATOR = 0  # of the documents in examples/packed_tokens


def main() -> None:
    """Make the data in a temporary folder, and draw the pictures there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an example; default: all")
    names: list[str] = parser.parse_args().names or list(DRAWINGS)
    with tempfile.TemporaryDirectory(prefix="stagepipe-gallery-") as folder:
        os.chdir(folder)
        for name, count in COUNTS.items():
            run(sys.executable, ROOT / f"scripts/make_{name}.py", "--count", count)
        run(sys.executable, ROOT / "scripts/make_tokenizer.py")
        for name in names:
            DRAWINGS[name](name)
            print(name)
        os.chdir(ROOT)


def run(*command: object) -> str:
    """Run a command; return its output."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout


def run_example(name: str, *options: str) -> Path:
    """Run the config of an example to its end; return the folder of its output."""
    run(Path(sys.executable).with_name("stagepipe"), "run", config(name), "--quiet", *options)
    return Path("runs") / name


def config(name: str) -> Path:
    """Return the config of an example."""
    return ROOT / "examples" / name / f"{name}.yaml"


def first_batch(name: str) -> dict[str, Any]:
    """Return the first item of a config without a sink, made in this process."""
    with Pipeline(config(name), inline=True) as pipeline:
        batch: dict[str, Any] = next(iter(pipeline))
    return batch


def draw_image_training(name: str) -> None:
    """Draw a batch without its normalization."""
    images = first_batch(name)["data"].transpose(0, 2, 3, 1) * [0.229, 0.224, 0.225] + [0.485, 0.456, 0.406]
    save(name, tile((images * 255).clip(0, 255).astype(np.uint8), columns=8))


def draw_thumbnails(name: str) -> None:
    """Draw the first thumbnails, each in a square of 96 pixels."""
    cells = []
    for path in sorted(run_example(name).rglob("*.jpg"))[::50]:
        cell = Image.new("RGB", (96, 96), "white")
        with Image.open(path) as thumbnail:
            cell.paste(thumbnail, ((96 - thumbnail.width) // 2, (96 - thumbnail.height) // 2))
        cells.append(np.asarray(cell))
    save(name, tile(np.stack(cells), columns=6))


def draw_video_clips(name: str) -> None:
    """Draw a batch, one clip per row."""
    frames = first_batch(name)["frames"]
    save(name, tile(frames.reshape(-1, *frames.shape[2:]), columns=frames.shape[1]))


def draw_audio_features(name: str) -> None:
    """Draw three spectrograms of a shard, one below the other, with their padding."""
    with np.load(run_example(name) / "000000.npz") as shard:
        features, lengths = shard["data"][:3], shard["data_length"][:3]
    rows = []
    for windows, length in zip(features, lengths, strict=True):
        colors = np.full((*windows.shape, 3), PADDING, np.uint8)
        colors[:length] = to_colors(windows[:length])
        rows.append(colors.transpose(1, 0, 2)[80::-1])  # the lower frequencies, the lowest at the bottom
    save(name, np.concatenate(rows), zoom=2)


def draw_feature_extraction(name: str) -> None:
    """Draw the features: every sixth row of the Parquet file is a column of the picture."""
    import pandas as pd

    table = pd.concat(pd.read_parquet(path) for path in sorted(run_example(name).glob("*.parquet")))
    save(name, to_colors(np.stack(list(table["features"])).T[:, ::6]), zoom=6)


def draw_packed_tokens(name: str) -> None:
    """Draw sequences, one per row; the color changes with the document, and padding is dark."""
    with np.load(run_example(name) / "000000.npz") as shard:
        tokens, segments = shard["data"], shard["segment_ids"]
    documents = np.cumsum(tokens.ravel() == SEPARATOR).reshape(tokens.shape) - (tokens == SEPARATOR)
    colors = PALETTE[documents % len(PALETTE)]
    colors[segments == 0] = PADDING
    save(name, colors, zoom=3)


def draw_dataset_mixing(name: str) -> None:
    """Draw a square for each document in the order of the mix: web, books, code."""
    lines = [line for path in sorted(run_example(name).glob("*.jsonl")) for line in path.read_text().splitlines()]
    kinds = [("web", "books", "code").index(json.loads(line)["collection"]) for line in lines[:560]]
    save(name, PALETTE[np.array(kinds).reshape(-1, 56)], zoom=10)


def draw_table_cleaning(name: str) -> None:
    """Draw the first rows of the CSV file and of the clean table."""
    import pandas as pd

    clean = pd.concat(pd.read_parquet(path) for path in sorted(run_example(name).glob("*.parquet")))
    raw = Path("data/table/measurements.csv").read_text().splitlines()
    print_text(
        name,
        Text("$ head -n 13 data/table/measurements.csv", "bold"),
        "\n".join(raw[:13]),
        Text(f"\nruns/table_cleaning/000000.parquet: {len(clean)} of {len(raw) - 1} rows", "bold"),
        clean.head(9).to_string(index=False),
    )


def draw_three_models(name: str) -> None:
    """Draw the report, whose table of stages has the memory of each."""
    run_example(name, "--report", "report.json")
    command = f"stagepipe run examples/{name}/{name}.yaml"
    print_text(name, Text(f"$ {command}", "bold"), render_brief(from_json(Path("report.json").read_bytes())))


def draw_script(name: str) -> None:
    """Draw the output of a script of examples/."""
    path = f"examples/{name}.py"
    print_text(name, Text(f"$ python {path}", "bold"), run(sys.executable, ROOT / path))


def to_colors(values: np.ndarray) -> np.ndarray:
    """Return colors from dark blue over green to yellow, between the 2nd and the 98th percentile."""
    low, high = np.percentile(values, [2, 98])
    share = ((values - low) / (high - low)).clip(0, 1)
    stops = np.array([(26, 20, 70), (33, 110, 130), (90, 190, 110), (250, 230, 70)])
    return np.stack([np.interp(share, np.linspace(0, 1, 4), stops[:, c]) for c in range(3)], axis=-1).astype(np.uint8)


def tile(images: np.ndarray, columns: int) -> np.ndarray:
    """Lay out images of one size in rows of `columns`, with a white line between them."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=255)
    rows = [np.concatenate(list(padded[start : start + columns]), axis=1) for start in range(0, len(padded), columns)]
    return np.concatenate(rows)


def save(name: str, pixels: np.ndarray, zoom: int = 1) -> None:
    """Write a PNG with as many colors as fit into 60 kB."""
    picture = Image.fromarray(pixels.repeat(zoom, axis=0).repeat(zoom, axis=1))
    path = PICTURES / f"{name}.png"
    for colors in (256, 128, 64, 32):
        picture.quantize(colors).save(path, optimize=True)
        if path.stat().st_size <= MAX_BYTES:
            return
    raise SystemExit(f"{path}: more than {MAX_BYTES:,} bytes")


def print_text(name: str, *parts: Any) -> None:
    """Draw what a terminal shows."""
    with record_terminal(PICTURES / f"{name}.svg", name, WIDTH) as console:
        for part in parts:
            console.print(part, highlight=False)


DRAWINGS: dict[str, Callable[[str], None]] = {
    "image_training": draw_image_training,
    "thumbnails": draw_thumbnails,
    "feature_extraction": draw_feature_extraction,
    "three_models": draw_three_models,
    "audio_features": draw_audio_features,
    "video_clips": draw_video_clips,
    "packed_tokens": draw_packed_tokens,
    "table_cleaning": draw_table_cleaning,
    "dataset_mixing": draw_dataset_mixing,
    "script": draw_script,
    "training_loop": draw_script,
    "train_digits": draw_script,
}


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    main()
