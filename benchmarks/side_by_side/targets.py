"""A promise, what was measured, and the verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A promise, what was measured, and the verdict. `met` is None where this run did not measure it."""

    text: str
    measured: str
    met: bool | None

    def line(self) -> str:
        """`PASS  text: measured`."""
        verdict = {True: "PASS", False: "MISS", None: "  --"}[self.met]
        return f"{verdict}  {self.text}: {self.measured}"
