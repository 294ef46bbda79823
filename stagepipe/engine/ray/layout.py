"""Which processes of a plan run on Ray, and which in the caller's process. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.plan import Plan, ProcessRole


@dataclass(frozen=True)
class RayLayout:
    """Which processes of a plan run on Ray: the first `count` as operators of Ray Data, and `pools` as pools of actors.

    The others run in the caller's process.
    """

    count: int
    pools: frozenset[int] = frozenset()

    @classmethod
    def of(cls, plan: Plan) -> RayLayout:
        """Return the layout: all up to the first order point run on Ray, and what has several workers after it."""
        roles = [process.role for process in plan.processes]
        count = roles.index(ProcessRole.ORDER_POINT) if ProcessRole.ORDER_POINT in roles else len(roles)
        pools = (
            index
            for index, process in enumerate(plan.processes)
            if index > count
            and process.role is ProcessRole.STAGE
            and process.workers > 1
            and process.first_stage.batch is None  # it would wait for the items of a batch, one by one
        )
        return cls(count, frozenset(pools))

    def is_on_ray(self, index: int) -> bool:
        """Whether the process with this index in the plan runs on Ray."""
        return index < self.count or index in self.pools

    @property
    def indices(self) -> tuple[int, ...]:
        """The processes that run on Ray."""
        return (*range(self.count), *sorted(self.pools))
