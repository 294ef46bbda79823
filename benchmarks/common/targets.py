"""A target, the value measured, and the verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A target, the value measured, and the verdict. `met` is None if this run did not measure it."""

    text: str
    measured: str
    met: bool | None

    def line(self) -> str:
        """Format as `PASS  text: measured`."""
        verdict = {True: "PASS", False: "MISS", None: "  --"}[self.met]
        return f"{verdict}  {self.text}: {self.measured}"
