"""The zoo of bad stages as a table in Markdown: `python -m tests.chaos.zoo_table`."""

# ruff: noqa: T201 - what it prints is what it is for
from __future__ import annotations

import pytest

from tests.zoo.table import ANIMALS, show


def main() -> None:
    """A row for each, as it ends on this machine."""
    print("| stage | what happened | what the user saw | seconds | left behind |\n|---|---|---|---|---|")
    for animal in ANIMALS:
        with pytest.MonkeyPatch.context() as patch:
            seen = show(animal, patch)
        told = seen.told.replace("|", "\\|")
        print(
            f"| `{animal.uses}` | {animal.does} | {told} | {seen.seconds:.1f} | {seen.left or 'nothing'} |", flush=True
        )


if __name__ == "__main__":
    main()
