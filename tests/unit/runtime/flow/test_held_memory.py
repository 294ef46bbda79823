"""The limit of held memory: what a process that keeps its items is told, and how often they are summed up."""

from dataclasses import dataclass

import pytest

from stagepipe.runtime.flow import EXPECTED_LEASES, HeldMemoryLimit


@dataclass
class Pool:
    """Stands in for the SharedMemoryPool, whose leases need arenas."""

    lease_count: int = 0
    bytes_per_lease: int = 10
    sums: int = 0

    def held_bytes(self) -> int:
        self.sums += 1
        return self.lease_count * self.bytes_per_lease


@pytest.fixture
def pool() -> Pool:
    return Pool()


def make_limit(pool: Pool, published: list[int]) -> HeldMemoryLimit:
    return HeldMemoryLimit(pool, 100, published.append)  # type: ignore[arg-type]


def test_items_are_copied_while_more_than_the_limit_is_held(pool):
    published: list[int] = []
    limit = make_limit(pool, published)
    exceeded = []
    for pool.lease_count in (8, 10, 11, 10):
        exceeded.append(limit.check())
    assert exceeded == [False, False, True, False]
    assert published == [80, 100, 110, 100]


def test_the_leases_of_any_caller_are_not_summed_up(pool):
    published: list[int] = []
    limit = make_limit(pool, published)
    pool.lease_count, pool.bytes_per_lease = EXPECTED_LEASES, 1000
    assert not limit.check()
    assert (pool.sums, published) == (0, [0])


def test_many_leases_are_summed_up_now_and_then(pool):
    limit = make_limit(pool, [])
    pool.lease_count = 1000
    assert [limit.check() for _ in range(8)] == [False] * 3 + [True] * 5
    assert pool.sums == 2
    assert limit.measure()
    assert pool.sums == 3
