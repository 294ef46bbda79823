"""`plan`, `what_if` and the verdict come from one model: on random measured pipelines none contradicts another."""

import contextlib
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from stagepipe import ConfigError
from stagepipe.config import load
from stagepipe.forecast import estimate_changes
from stagepipe.forecast.advice import MIN_GAIN_RATIO, advise
from stagepipe.forecast.cost_values import ResourceBudget, compute_expected_cpus
from stagepipe.forecast.costs import compute_run_costs
from stagepipe.plan import Plan
from stagepipe.report import ConsumerReport, HostReport, RunRecord, build_report
from stagepipe.timing import Histogram
from tests.support.pipelines import batch, pipeline, stage
from tests.unit.forecast.test_costs import US, hop_record, plan, record, stage_record

ITEMS = 96
NO_CHANGE = "No config change will help"
PIPELINES = 250


def draw_run(seed: int) -> tuple[Plan, RunRecord, list[dict[str, object]]]:
    """A pipeline of one to four stages, as a run might have measured it: any work, hops, waits, load and memory."""
    random = Random(seed)
    names = [f"stage{number}" for number in range(random.randint(1, 4))]
    specs = [
        stage("same", name, **draw_keys(random, first=number == 0), workers=random.choice([1, 1, 2, 3]))
        if random.random() < 0.85
        else batch(4, name=name)
        for number, name in enumerate(names)
    ]
    specs = [
        {key: value for key, value in spec.items() if not (spec.get("fuse") and key == "workers")} for spec in specs
    ]
    made = plan(*specs, **({"window": random.randint(2, 64)} if random.random() < 0.3 else {}))
    wall_ns = random.choice([1, 3, 30]) * 10**9
    stages = []
    for process in made.processes:
        first_ns = 0
        for number, each in enumerate(process.stages):
            run_us = int(random.choice([1, 5, 100, 2_000, 8_000]) * random.uniform(1, 2))
            row = stage_record(each.name, run_us, cpu_us=int(run_us * random.uniform(0.05, 1.0)))
            row = replace(row, workers=process.workers, crashes=random.choice([0, 0, 0, 0, 2]))
            first_ns += row.busy_ns
            row = replace(
                row, wall_ns=wall_ns * process.workers, starting_ns=wall_ns // random.choice([50, 50, 20, 10, 2])
            )
            if number:
                row = replace(row, fused_into=process.name, wall_ns=row.busy_ns, starting_ns=0, workers=process.workers)
            stages.append(row)
        head = len(stages) - len(process.stages)
        rest_ns = max(stages[head].wall_ns - stages[head].starting_ns - first_ns, 0)
        starved_ns = int(rest_ns * random.choice([0.0, 0.05, 0.5, 0.95]))
        blocked_ns = int((rest_ns - starved_ns) * random.choice([0.0, 0.1, 1.0]))
        stages[head] = replace(stages[head], starved_ns=starved_ns, blocked_ns=blocked_ns)
    ends = [*(each.name for each in stages), "sink"]
    hops = [draw_hop(random, source, target) for source, target in pairwise(ends)]
    made_record = replace(
        record(*stages, hops=tuple(hops)),
        wall_ns=wall_ns,
        first_item_ns=wall_ns // random.choice([100, 3]),
        source_end_ns=wall_ns // 2,
        consumer=ConsumerReport(wait_ns=wall_ns // 2, busy_ns=int(wall_ns * random.choice([0.0, 0.0, 0.1, 0.9]))),
        cpus=random.choice([2, 4, 16]),
        cpu_quota=random.choice([0.0, 0.0, 0.0, 1.0]),
        other_cpus=random.choice([0.0, 0.0, 0.0, 1.0]),
        host=HostReport(memory_bytes=random.choice([0, 1 << 30, 64 << 30])),
        order_point_names=tuple(each.name for each in made.processes if each.role.value == "order point"),
        window_items=random.choice([4, 256]),
    )
    return made, replace(made_record, what_if=estimate_changes(made, made_record)), specs


def draw_keys(random: Random, *, first: bool) -> dict[str, object]:
    keys: dict[str, object] = {}
    if random.random() < 0.2 and not first:
        keys["fuse"] = True
    elif random.random() < 0.15:
        keys["stateful"] = True
    elif random.random() < 0.15:
        keys["transport"] = "shared_memory"
    return keys


def draw_hop(random: Random, source: str, target: str):
    cost_us = random.choice([5, 20, 500])
    side = Histogram.from_values_ns([cost_us * US // 2] * ITEMS)
    return replace(
        hop_record(source, target),
        cost_histogram=Histogram.from_values_ns([cost_us * US] * ITEMS),
        phase_histograms={"encode_ns": side, "decode_ns": side},
    )


@pytest.fixture(scope="module")
def runs():
    drawn = []
    for seed in range(PIPELINES):
        with contextlib.suppress(ConfigError):  # a drawn config may be invalid: `stateful` with workers, and such
            drawn.append((seed, *draw_run(seed)[:2]))
    assert len(drawn) > PIPELINES / 2
    return drawn


def test_the_fix_is_the_best_eligible_change(runs):
    fixes = 0
    for seed, _, measured in runs:
        report = build_report(measured)
        eligible = [change for change in report.what_if if change.is_eligible]
        if report.verdict.fix:
            fixes += 1
            offered = [change for change in eligible if " ".join(change.overrides) == report.verdict.fix]
            assert offered, seed
            is_own = offered[0].kind in {"window", "memory", "threads"}
            assert is_own or offered[0].gain == max(change.gain for change in eligible), seed
        else:
            assert not eligible or report.verdict.kind in {"none", "startup", "restarts"}, (seed, report.verdict)
    assert 0.15 * len(runs) < fixes < len(runs)


def test_every_eligible_change_is_a_valid_config():
    changes = 0
    for seed in range(PIPELINES):
        with contextlib.suppress(ConfigError):
            _, measured, specs = draw_run(seed)
            for change in measured.what_if:
                if change.is_eligible:
                    changes += 1
                    try:
                        load(pipeline(*specs), list(change.overrides))
                    except ConfigError as error:
                        raise AssertionError(seed, change.overrides) from error
    assert changes > PIPELINES / 4


def test_no_change_will_help_is_said_only_where_there_is_none(runs):
    said = 0
    for seed, _, measured in runs:
        report = build_report(measured)
        if NO_CHANGE in report.verdict.advice:
            said += 1
            assert report.verdict.fix == "", seed
            assert not [change for change in report.what_if if change.is_eligible], seed
    assert said


def test_every_change_that_is_not_offered_says_why(runs):
    for seed, _, measured in runs:
        for change in build_report(measured).what_if:
            assert change.is_eligible or change.ineligible_reason, seed
            assert change.gain_low <= change.gain, seed
            assert (
                not change.is_eligible or change.gain >= MIN_GAIN_RATIO - 1 or change.kind in {"window", "threads"}
            ), seed


def test_the_advice_of_plan_is_among_the_changes(runs):
    """The same costs and budget: where `plan` advises a layout, an estimate gains a tenth too, or says why not."""
    advised = 0
    for seed, made, measured in runs:
        if not measured.what_if:
            continue
        budget = ResourceBudget(
            cpus=min(
                compute_expected_cpus(measured.cpus - measured.other_cpus, measured.cpus), measured.cpu_quota or 99.0
            ),
            machine_cpus=measured.cpus,
            memory_bytes=measured.host.memory_bytes or 1 << 40,
            arena_bytes=made.memory_bytes,
        )
        costs = compute_run_costs(made, measured)
        steps = advise(costs, tuple(process.workers for process in made.processes), budget)
        if steps and steps[0].items_per_s_after > 1.01 * MIN_GAIN_RATIO * steps[0].items_per_s_before:
            advised += 1
            gaining = [change for change in measured.what_if if change.gain_low > 0 and change.overrides]
            assert gaining, (seed, steps[0])
    assert advised
