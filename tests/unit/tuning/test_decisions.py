"""What stays and what goes: the decisions of tuning, on measurements that are simulated."""

import random
from statistics import fmean

import pytest

from stagepipe.tuning import MAX_PAIRS, MIN_PAIRS, Judgement, PairOfRuns, Tuner, estimate_ratio, judge_pairs

SURE = [PairOfRuns(2.0, 1.0), PairOfRuns(2.1, 1.0), PairOfRuns(1.9, 1.0), PairOfRuns(2.0, 1.0)]


def pairs(*ratios):
    return [PairOfRuns(ratio, 1.0) for ratio in ratios]


def decide(tuner, *ratios):
    """Give the change under way these ratios, until there is a decision."""
    for pair in pairs(*ratios):
        judgement = tuner.add_pair(pair, items=100)
        if judgement is not Judgement.MEASURE_MORE:
            return judgement
    return Judgement.MEASURE_MORE


def test_an_interval_holds_the_true_ratio_in_99_of_100_cases():
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        interval = estimate_ratio([PairOfRuns(draw.lognormvariate(0.3, 0.1), 1.0) for _ in range(MIN_PAIRS)])
        held += interval.low <= 1.3499 <= interval.high  # exp(0.3)
    assert 0.98 < held / 2000 < 0.998


def test_a_change_without_effect_stays_in_at_most_one_of_twenty():
    draw = random.Random(2)
    kept = 0
    for _ in range(1000):
        made = [PairOfRuns(draw.lognormvariate(0, 0.05), 1.0) for _ in range(MAX_PAIRS)]
        answers = (judge_pairs(made[:count]) for count in range(1, MAX_PAIRS + 1))
        kept += next((answer for answer in answers if answer is not Judgement.MEASURE_MORE), None) is Judgement.KEEP
    assert kept / 1000 < 0.05


def test_a_ratio_and_its_inverse_have_inverse_intervals():
    there = estimate_ratio(SURE)
    back = estimate_ratio([PairOfRuns(pair.after_s, pair.before_s) for pair in SURE])
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high)


def test_one_pair_says_nothing_about_the_spread():
    assert str(estimate_ratio(pairs(1.5))) == "1.50 [0.00, inf]"


def test_a_change_needs_four_pairs_to_stay():
    assert judge_pairs(pairs(2.0, 2.1, 2.0)) is Judgement.MEASURE_MORE
    assert judge_pairs(pairs(2.0, 2.1, 2.0, 2.0)) is Judgement.KEEP


def test_a_change_that_is_slower_goes_after_two_pairs():
    assert judge_pairs(pairs(0.8)) is Judgement.MEASURE_MORE
    assert judge_pairs(pairs(0.8, 0.7)) is Judgement.DROP


def test_a_change_whose_interval_includes_1_is_measured_on_and_then_goes():
    noisy = pairs(1.4, 0.9, 1.3, 0.95, 1.35, 0.9, 1.3, 0.9)
    assert all(judge_pairs(noisy[:count]) is Judgement.MEASURE_MORE for count in range(4, MAX_PAIRS))
    assert judge_pairs(noisy) is Judgement.DROP


def test_a_gain_of_less_than_one_percent_goes_however_sure_it_is():
    assert judge_pairs(pairs(1.005, 1.005, 1.005, 1.006)) is Judgement.DROP


def test_changes_that_stay_add_up_and_a_later_value_takes_the_place_of_an_earlier_one():
    tuner = Tuner(["vars.size=8"], max_steps=9)
    for change in (("stages.a.workers=2",), ("stages.b.fuse=true", "stages.b.workers=null"), ("stages.a.workers=3",)):
        assert tuner.propose([change]) == change
        assert decide(tuner, 2, 2, 2, 2) is Judgement.KEEP
    assert tuner.overrides == ("vars.size=8", "stages.a.workers=3", "stages.b.fuse=true", "stages.b.workers=null")
    assert [step.is_kept for step in tuner.steps] == [True] * 3


def test_a_change_that_does_not_pay_is_not_kept_and_not_tried_again_from_the_same_layout():
    tuner = Tuner(max_steps=9)
    offers = [("stages.a.workers=2",), ("window=9",)]
    assert tuner.propose(offers) == offers[0]
    assert decide(tuner, 1.0, 1.0, 1.0, 1.0) is Judgement.DROP
    assert tuner.overrides == ()
    assert tuner.propose(offers) == offers[1]
    assert decide(tuner, 1.5, 1.5, 1.5, 1.5) is Judgement.KEEP
    assert tuner.propose(offers) == offers[0], "the layout is another one now"


def test_settings_that_the_layout_has_are_no_change():
    assert Tuner(["window=9"], max_steps=9).propose([("window=9",), ()]) is None


def test_steps_are_bounded():
    tuner = Tuner(max_steps=2)
    for number in range(2):
        tuner.propose([(f"window={number}",)])
        decide(tuner, 2, 2, 2, 2)
    assert tuner.propose([("window=7",)]) is None
    assert tuner.is_at_limit


def test_more_workers_of_a_stage_where_some_paid_well_are_first_doubled():
    tuner = Tuner(max_steps=9)
    tuner.propose([("stages.a.workers=4",)])
    decide(tuner, 2, 2, 2, 2)
    assert tuner.propose([("stages.a.workers=5", "window=20")]) == ("stages.a.workers=8", "window=32")
    assert decide(tuner, 0.8, 0.8) is Judgement.DROP
    assert tuner.propose([("stages.a.workers=5", "window=20")]) == ("stages.a.workers=5", "window=20")


def test_an_offer_of_more_than_double_stays_as_it_is():
    tuner = Tuner(max_steps=9)
    tuner.propose([("stages.a.workers=2",)])
    decide(tuner, 2, 2, 2, 2)
    assert tuner.propose([("stages.a.workers=8",)]) == ("stages.a.workers=8",)


def test_a_refused_change_says_why_and_has_no_ratio():
    tuner = Tuner(max_steps=9)
    tuner.propose([("memory=1",)])
    tuner.refuse("not valid")
    assert not tuner.is_measuring
    assert (tuner.steps[0].is_kept, tuner.steps[0].note, tuner.steps[0].interval) == (False, "not valid", None)


def test_an_end_that_is_slower_than_the_start_leaves_the_change_that_was_compared_with_it():
    tuner = Tuner(["seed=3"], max_steps=9)
    for change in (("stages.a.workers=2",), ("window=9",)):
        tuner.propose([change])
        decide(tuner, 1.1, 1.1, 1.1, 1.1)
    tuner.undo_all_but_first("undone")
    assert tuner.overrides == ("seed=3", "stages.a.workers=2")
    assert [(step.is_kept, step.note) for step in tuner.steps] == [(True, ""), (False, "undone")]


def test_rates_are_those_of_the_pairs():
    tuner = Tuner(max_steps=9)
    tuner.propose([("window=9",)])
    for _ in range(4):
        tuner.add_pair(PairOfRuns(before_s=4.0, after_s=2.0), items=100)
    step = tuner.steps[0]
    assert (step.before_items_per_s, step.after_items_per_s) == (pytest.approx(25), pytest.approx(50))
    assert step.interval.ratio == pytest.approx(step.after_items_per_s / step.before_items_per_s)


def simulate(seed: int, noise: float) -> float:
    """Tune a machine whose true gains are known. Return the true rate of the layout at the end; it starts at 1."""
    draw = random.Random(seed)
    gains = {
        f"stages.s{number}.workers=2": draw.choice([0.7, 0.9, 0.97, 1.0, 1.0, 1.02, 1.2, 2.0]) for number in range(8)
    }

    def true_rate(overrides) -> float:
        rate = 1.0
        for override in overrides:
            rate *= gains[override]
        return rate

    tuner = Tuner(max_steps=16)
    while (change := tuner.propose([(each,) for each in gains if each not in tuner.overrides])) is not None:
        before, after = true_rate(tuner.overrides), true_rate(tuner.with_change())
        while tuner.is_measuring:
            times = (draw.lognormvariate(0, noise) / rate for rate in (before, after))
            tuner.add_pair(PairOfRuns(*times), items=1)
        assert change in [step.change for step in tuner.steps]
    return true_rate(tuner.overrides)


@pytest.mark.parametrize("noise", [0.005, 0.03, 0.15])
def test_noisy_measurements_do_not_end_below_the_start(noise):
    ends = [simulate(seed, noise) for seed in range(200)]
    assert sum(end < 0.97 for end in ends) <= 4, "a change that costs more than 3 % stays in one of fifty at most"
    assert fmean(ends) > (2.0 if noise <= 0.03 else 1.4), "and what pays stays"
