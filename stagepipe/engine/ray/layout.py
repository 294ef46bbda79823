"""Which processes of a plan run on Ray, and which in the caller's process. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.plan import Plan, ProcessRole


@dataclass(frozen=True)
class RayLayout:
    """Which processes of a plan run on Ray: the first `count`. The others run in the caller's process."""

    count: int

    @classmethod
    def of(cls, plan: Plan) -> RayLayout:
        """Return the layout: all up to the first order point run on Ray."""
        roles = [process.role for process in plan.processes]
        return cls(roles.index(ProcessRole.ORDER_POINT) if ProcessRole.ORDER_POINT in roles else len(roles))
