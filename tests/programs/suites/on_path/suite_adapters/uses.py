"""Which tests reached an adapter, and what it started: a line in a file. Processes that a test starts add theirs."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

USES_FILE = "STAGEPIPE_ADAPTER_USES"


def count_use(what: str) -> None:
    """Count `made`, `inline` or `processes` for the test that runs now."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    with Path(os.environ.get(USES_FILE, os.devnull)).open("a") as file:
        file.write(f"{_name_test(test)}\t{what}\n")


def load_uses(path: Path) -> Mapping[str, Counter[str]]:
    """Return the counts by test."""
    uses: dict[str, Counter[str]] = defaultdict(Counter)
    for line in path.read_text().splitlines() if path.exists() else ():
        test, what = line.split("\t")
        uses[test][what] += 1
    return uses


def _name_test(current: str) -> str:
    """Return `file::Class::test` of what pytest says of the running test."""
    return re.sub(r" \(\w+\)$", "", current).rpartition("/")[2]
