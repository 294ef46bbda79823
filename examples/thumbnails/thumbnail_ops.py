"""The sink of thumbnails.yaml."""

from pathlib import Path
from typing import Any


class JpegFolder:
    """Write the bytes in `data` to `path`, in a folder of the item's label, under the name of its file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __call__(self, item: dict[str, Any]) -> None:
        """Write one file: beside its place first, so that there is no half-written one."""
        file = self.path / item["label"] / f"{Path(item['path']).stem}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_bytes(item["data"])
        partial.rename(file)
