"""Small items share packets and a dataset sends chunks, so their hops cost less than the probe's single items."""

from dataclasses import replace

import pytest

from stagepipe.forecast import compute_costs
from stagepipe.forecast.cost_values import HopCost
from stagepipe.forecast.payload import estimate_payload, share_packets
from stagepipe.plan import ItemSample, PieceSample, ProbeResult
from tests.support.pipelines import stage
from tests.unit.forecast.chains import US, chain, process
from tests.unit.forecast.test_costs import CURVES, hop_record, plan, record, stage_record


def hop_of_items(nbytes, *, sender_us=5, reader_us=5):
    """The first hop of a chain, whose items are a pickle of `nbytes`, and its cost if each has a packet of its own."""
    costs = chain(process("source", sender_us), process("last", reader_us), hop_us=20)
    [hop, _] = plan(stage("double")).hops
    payload = estimate_payload(hop, ProbeResult(items=(ItemSample((), nbytes),)), CURVES)
    carrying_us = payload.decision.cost_ns / US
    shared = share_packets(costs, (payload, None), (1.0, 1.0))
    return shared, 20 - shared.hops[0].total_ns / US, carrying_us


def test_small_items_of_quick_stages_share_packets():
    costs, saved_us, carrying_us = hop_of_items(20)
    assert saved_us == pytest.approx(carrying_us / 2, rel=0.05)
    assert costs.processes[0].cpu_ns == pytest.approx((5 + 10 - saved_us / 2) * US)
    assert costs.hops[1] == HopCost(10 * US, 10 * US), "nothing is known about its items"


def test_items_that_exceed_half_a_packet_share_a_block():
    costs = hop_of_items(3000)[0]
    assert costs.hops[0].total_ns < 20 * US
    [hop, _] = plan(stage("double", transport="pipe")).hops
    payload = estimate_payload(hop, ProbeResult(items=(ItemSample((), 3000),)), CURVES)
    alone = chain(process("source", 5), process("last", 5), hop_us=20)
    forced = share_packets(alone, (payload, None), (1.0, 1.0), pipes_only=[0])
    assert forced.hops[0].total_ns == pytest.approx(20 * US), "a forced pipe has no blocks"


@pytest.mark.parametrize(
    "nbytes, keys",
    [(5000, {}), (20, {"sender_us": 6000}), (20, {"reader_us": 250})],
    ids=["large item", "slow sender", "slow reader"],
)
def test_other_items_have_a_packet_of_their_own(nbytes, keys):
    assert hop_of_items(nbytes, **keys)[1] == pytest.approx(0, abs=0.01)


def costs_of_a_dataset(**keys):
    dataset = {"dataset": "tests.support.datasets.Squares", "with": {"count": 100}}
    source = {"uses": "stagepipe.sources.dataset", "with": dataset, **keys}
    batch = {"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": 8}}
    planned = plan(batch, source=source)
    planned = replace(planned, curves=replace(CURVES, timing_ns_per_hop=2000))
    records = (stage_record("source.indices", 1), stage_record("source", 4), stage_record("batch", 30))
    hops = (
        hop_record("source.indices", "source"),
        hop_record("source", "batch"),
        hop_record("batch", "sink", messages=12),
    )
    row = ItemSample((PieceSample(name="[0]", nbytes=3072),), 60)
    samples = {"source.indices": ProbeResult(items=(ItemSample((), 5),)), "source": ProbeResult(items=(row,))}
    return compute_costs(planned, record(*records, hops=hops), samples)


def test_a_dataset_whose_samples_travel_in_chunks_has_cheap_hops_and_is_not_fused():
    costs = costs_of_a_dataset()
    source, dataset, batch = costs.processes
    assert sum(hop.total_ns for hop in costs.hops[:2]) < 3 * US
    assert "chunks" in dataset.unfusable_reason
    assert dataset.loop_ns < 100
    assert source.cpu_ns + dataset.cpu_ns + batch.cpu_ns < 20 * US
    assert batch.run_ns < 3 * US


def test_a_dataset_that_sends_no_chunks_has_the_costs_of_single_items():
    single = costs_of_a_dataset(stateful=True)
    assert sum(hop.total_ns for hop in single.hops[:2]) > 20 * US
    assert single.processes[1].loop_ns == 3000


def test_the_cost_of_a_call_follows_the_speed_of_the_machine():
    fast, slow = (
        compute_costs(
            replace(plan(stage("double")), curves=curves),
            record(
                stage_record("source", 10),
                stage_record("double", 10),
                hops=(hop_record("source", "double"), hop_record("double", "sink")),
            ),
            {},
        )
        for curves in (replace(CURVES, timing_ns_per_hop=ns) for ns in (1000, 3000))
    )
    assert slow.processes[1].call_ns == 3 * fast.processes[1].call_ns
    assert slow.processes[1].loop_ns == 3 * fast.processes[1].loop_ns
