"""A random pipeline gives the same values however it runs; `python -m tests.properties` runs thousands."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.chaos.cases import Case
from tests.properties.__main__ import BAD_VERDICTS, count
from tests.properties.cases import KINDS, make_case
from tests.properties.mutations import streams_seeded_once
from tests.properties.running import run_case

INLINE_SEEDS = range(1000, 1060)
SEEDS = range(len(KINDS))
CHANGED_SEEDS = range(20, 24)
MORE_CASES = 8
"""On a busy machine fewer workers are killed or added before a run ends: so many more cases make up for it."""


def run_all(cases: Iterable[Case]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for case in cases:
        outcome = run_case(case, lambda _: None)
        assert outcome["verdict"] not in BAD_VERDICTS, f"python -m tests.properties --case {case!r}: {outcome}"
        count(totals, outcome)
    return totals


def run_until(totals: Counter[str], least: dict[str, int], cases: Iterable[Case]) -> None:
    """Run cases and add them to the totals, until these are at least `least`."""
    for case in cases:
        if totals >= Counter(least):
            return
        totals.update(run_all([case]))


@pytest.mark.timeout(120)
def test_fused_and_not_and_resumed_at_every_position_in_one_process():
    totals = run_all(make_case(seed, "inline") for seed in INLINE_SEEDS)
    assert totals["equal"] > 0.9 * len(INLINE_SEEDS)
    assert totals["resumes inline"] > 400


@pytest.mark.timeout(180)
def test_in_processes_of_every_kind_resumed_at_every_position_and_killed():
    totals = run_all(map(make_case, SEEDS))
    assert [totals[kind] for kind in KINDS] == [KINDS.count(kind) for kind in KINDS]
    more_seeds = range(SEEDS.stop, SEEDS.stop + MORE_CASES)
    run_until(totals, {"resumes": 30, "kills": 2}, map(make_case, more_seeds))
    assert totals["resumes"] >= 30
    assert totals["kills"] >= 2


@pytest.mark.timeout(180)
def test_with_workers_that_come_and_go_resumed_at_every_position():
    totals = run_all(make_case(seed, "changed") for seed in CHANGED_SEEDS)
    more_seeds = range(CHANGED_SEEDS.stop, CHANGED_SEEDS.stop + MORE_CASES)
    run_until(totals, {"changes": 8, "resumes": 15}, (make_case(seed, "changed") for seed in more_seeds))
    assert totals["changes"] >= 8
    assert totals["resumes"] >= 15


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_pipelines():
    totals = run_all(map(make_case, range(2000, 2200)))
    assert totals["equal"] > 180
    run_until(totals, {"kills": 51, "changes": 101}, map(make_case, range(2200, 2400)))
    assert totals["kills"] > 50
    assert totals["changes"] > 100


@pytest.mark.timeout(120)
def test_a_stream_seeded_once_an_epoch_is_noticed():
    sources = {seed: make_case(seed)["config"]["source"] for seed in range(100)}
    seeds = [
        seed
        for seed, source in sources.items()
        if source["uses"].endswith("drawing_stream") and source["with"]["count"] > 4
    ]
    with streams_seeded_once():
        verdicts = [run_case(make_case(seed, "fused"), lambda _: None)["verdict"] for seed in seeds[:4]]
    assert verdicts.count("different") >= 2, verdicts


def test_a_seed_gives_one_case():
    assert make_case(3) == make_case(3) != make_case(4)


def test_every_kind_of_source_and_stage_is_drawn():
    cases = [make_case(seed) for seed in range(2000)]
    targets = Counter(
        entry["uses"].rpartition(".")[2]
        for case in cases
        for entry in (case["config"]["source"], *case["config"]["stages"])
    )
    assert {"numbers", "Items", "stream", "drawing_stream", "OwnDrawingStream", "DrawingItems"} <= set(targets)
    assert {"drawn", "drawn_parts", "parts", "dropped", "Keeping", "listed"} <= set(targets)
    assert {"flaky", "flaky_draws", "failing", "Batch", "Unbatch", "Shuffle"} <= set(targets)
    assert {"torch_drawn", "Augmented", "OwnGenerators", "context_drawn", "context_parts"} <= set(targets)
    assert {case["config"]["order"] for case in cases} == {"source", "any"}
    assert {tuple(case["keys"]) for case in cases} == {
        (),
        ("limit",),
        ("world_size", "rank"),
        ("limit", "world_size", "rank"),
    }
    generators = [[entry["uses"].endswith("parts") for entry in case["config"]["stages"]] for case in cases]
    assert any(sum(flags) > 1 for flags in generators), "no generator follows another"
