"""A stage that waits as long as a file says: tests change its time while a run goes on."""

import time
from pathlib import Path


class WaitAsTold:
    """Waits for the number of ms in a file, and returns the item."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, item: object) -> object:
        time.sleep(float(self._path.read_text()) / 1000)
        return item
