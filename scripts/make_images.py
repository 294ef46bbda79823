"""Make the images of the demo: JPEG files, random crops of the photographs in scikit-image and scikit-learn.

    python scripts/make_images.py --count 2000 --out data/images --seed 17

Writes OUT/<photo>/00001.jpg ...: crops with sides of 200 to 420 pixels, JPEG quality 70 to 95. The same arguments
make the same files. A second call finds them and does nothing. Requires the `demo` extra and no network.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}
PHOTOS = (
    ("skimage", "astronaut.png"),
    ("skimage", "chelsea.png"),
    ("skimage", "coffee.png"),
    ("skimage", "hubble_deep_field.jpg"),
    ("skimage", "ihc.png"),
    ("skimage", "motorcycle_left.png"),
    ("skimage", "motorcycle_right.png"),
    ("skimage", "retina.jpg"),
    ("skimage", "rocket.jpg"),
    ("sklearn", "china.jpg"),
    ("sklearn", "flower.jpg"),
)
SIDES = (200, 420)  # pixels; typical of a training set after its download script has resized it
QUALITIES = (70, 95)
MANIFEST = "manifest.json"
REQUIREMENTS = {"skimage": "scikit-image>=0.22", "sklearn": "scikit-learn>=1.4"}


def photo_paths() -> list[Path]:
    """Return the paths of the photographs in the packages. Exit if a package or a file is missing."""
    paths = []
    for package, name in PHOTOS:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            sys.exit(f"{package} is not installed; it ships photographs: pip install {REQUIREMENTS[package]!r}")
        path = Path(spec.origin).parent / FOLDERS[package] / name
        if not path.is_file():
            sys.exit(f"{path} is missing: this release of {package} does not ship it; install another")
        paths.append(path)
    return paths


def crop(photo: Any, draw: random.Random) -> Any:
    """Return a random crop of a PIL image, at most as large as the image."""
    width, height = (min(draw.randint(*SIDES), side) for side in photo.size)
    left, top = draw.randint(0, photo.width - width), draw.randint(0, photo.height - height)
    return photo.crop((left, top, left + width, top + height))


def cut(path: Path, folder: Path, count: int, seed: int) -> None:
    """Write `count` crops of one photograph."""
    from PIL import Image

    folder.mkdir(parents=True)
    draw = random.Random(f"{seed}/{path.stem}")
    with Image.open(path) as opened:
        photo = opened.convert("RGB")
    for number in range(1, count + 1):
        crop(photo, draw).save(folder / f"{number:05d}.jpg", quality=draw.randint(*QUALITIES))


def is_made(out: Path, wanted: dict[str, int]) -> bool:
    """Whether an earlier call with the same arguments has finished. The manifest is written last."""
    try:
        manifest = json.loads((out / MANIFEST).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return bool(manifest == wanted) and sum(1 for _ in out.glob("*/*.jpg")) == wanted["count"]


def make(out: Path, count: int, seed: int) -> str:
    """Make the images unless they exist; return one line about the result."""
    wanted = {"count": count, "seed": seed}
    if is_made(out, wanted):
        return f"{out}: {count} images are there already"
    started, paths = time.perf_counter(), photo_paths()
    (out / MANIFEST).unlink(missing_ok=True)
    for number, path in enumerate(paths):
        shutil.rmtree(out / path.stem, ignore_errors=True)
        cut(path, out / path.stem, len(range(number, count, len(paths))), seed)
    (out / MANIFEST).write_text(json.dumps(wanted))
    return f"{out}: made {count} images from {len(paths)} photographs in {time.perf_counter() - started:.1f} s"


def main() -> None:
    """Read the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("data/images"))
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    print(make(arguments.out, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
