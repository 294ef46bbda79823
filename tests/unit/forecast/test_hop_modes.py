"""A forced mode that costs more than `auto` is the first thing that `plan` advises to change."""

import pytest

from stagepipe.forecast import compute_costs
from stagepipe.forecast.advice import advise_modes, describe_forced_modes
from stagepipe.forecast.model import HopForecast, MessageCost
from stagepipe.plan import ItemSample, PieceSample, ProbeResult
from tests.support.pipelines import stage
from tests.unit.forecast.chains import US, budget
from tests.unit.forecast.test_costs import hop_record, plan, record, stage_record

MB_ITEM = ItemSample((PieceSample(name="image", nbytes=1 << 20, dtype="uint8"),), 60)
SMALL_ITEM = ItemSample((), 60)


def advise(item, *, config=None, **keys):
    """The advice for source -> double -> sink if the source sends such items."""
    planned = plan(stage("double", **keys), **(config or {}))
    records = (stage_record("source", 10), stage_record("double", 1))
    probed = record(*records, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    samples = {"source": ProbeResult(items=(item,)), "double": ProbeResult(items=(SMALL_ITEM,))}
    costs = compute_costs(planned, probed, samples)
    return costs, advise_modes(planned, probed, samples, costs=costs, budget=budget())


@pytest.mark.parametrize(
    "keys, override",
    [
        ({"transport": "pipe"}, "stages.double.transport=auto"),
        ({"config": {"transport": {"mode": "pipe"}}}, "transport.mode=auto"),
    ],
    ids=["of a stage", "of the config"],
)
def test_large_items_that_are_forced_through_a_pipe(keys, override):
    costs, advice = advise(MB_ITEM, **keys)
    [step] = advice.steps
    assert step.overrides == (override,)
    assert step.text.startswith("Do not force the transport into double (")
    assert step.items_per_s_after > 10 * step.items_per_s_before
    assert advice.costs.processes[1].cpu_ns < costs.processes[1].cpu_ns
    assert not advice.costs.processes[1].unfusable_reason, "with `auto` it may be fused, too"


@pytest.mark.parametrize(
    "item, keys", [(SMALL_ITEM, {"transport": "pipe"}), (MB_ITEM, {"transport": "shared_memory"}), (MB_ITEM, {})]
)
def test_a_mode_that_costs_no_more_stays(item, keys):
    costs, advice = advise(item, **keys)
    assert (advice.steps, advice.costs) == ((), costs)


def test_a_quick_function_in_a_process_that_waits_has_its_own_time():
    records = (stage_record("source", 10), stage_record("double", 3))
    probed = record(*records, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    delays = tuple(100 * US * (index + 1) for index in range(8))
    waiting = ProbeResult(items=(SMALL_ITEM,) * 8, cpu_ns=delays, cpu_delay_ns=delays, final_cpu_delay_ns=96 * 100 * US)
    costs = compute_costs(plan(stage("double")), probed, {"double": waiting})
    assert costs.processes[1].run_ns == pytest.approx(3 * US, rel=0.05)


@pytest.mark.parametrize(
    "mode, words",
    [
        ("pipe", "the forced pipe costs 41 ms per message, 34 times as much as shared memory would (1.2 ms)"),
        ("shared_memory", "the forced shared memory costs 1.2 ms per message, pipe would cost 41 ms"),
    ],
)
def test_one_line_gives_the_cost_of_a_forced_mode(mode, words):
    cost = MessageCost(as_sent_ns=0, pipe_ns=41_000_000, shared_memory_ns=1_200_000, pickling_ns=0)
    forced, free = (
        HopForecast(source="make", target="total", mode=each, threshold_bytes=0, reason="", cost=cost)
        for each in (mode, "auto")
    )
    assert describe_forced_modes((forced, free)) == (f"make -> total: {words}",)
