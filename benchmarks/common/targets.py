"""A target, the value measured, and the verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from benchmarks.common.figures import MIN_COVERAGE, Estimate


@dataclass(frozen=True)
class Target:
    """A target, the value measured, and the verdict. `met` is None if this run did not measure it or did not decide."""

    text: str
    measured: str = ""
    met: bool | None = None

    def line(self) -> str:
        """Format as `PASS  text: measured`."""
        undecided = "undecided" if self.measured else "  --"
        verdict = {True: "PASS", False: "MISS", None: undecided}[self.met]
        return f"{verdict}  {self.text}: {self.measured or 'not measured in this run'}"


def judge(text: str, figure: Estimate | None, measured: str, *, at_most: float = inf, at_least: float = -inf) -> Target:
    """Judge a figure, which `measured` describes: `{}` in it stands for the figure. None was not measured."""
    if figure is None:
        return Target(text)
    return Target(text, measured.format(figure.text()), is_met(figure, at_most=at_most, at_least=at_least))


def is_met(figure: Estimate, *, at_most: float = inf, at_least: float = -inf) -> bool | None:
    """Return whether the whole interval keeps the limits: None where only a part of it does, or rounds are missing.

    >>> [is_met(Estimate(1.0, 0.9, high, 0.97), at_most=1.1) for high in (1.05, 1.2)]
    [True, None]
    """
    if figure.coverage < MIN_COVERAGE:
        return None
    if at_least <= figure.low and figure.high <= at_most:
        return True
    return False if figure.high < at_least or figure.low > at_most else None
