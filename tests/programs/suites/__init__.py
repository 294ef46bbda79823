"""The tests of other data loaders, run through adapters."""

from __future__ import annotations

from tests.programs.tables import Table

TABLE = Table(name="suites", headings=("suite", "of", "passed", "not applicable", "failed", "notes"), cases={})
