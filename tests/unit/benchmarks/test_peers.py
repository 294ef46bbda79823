"""benchmarks.peers: digests, results merged job by job, lost rounds, pooled waits, tables and the page."""

import json

import numpy as np
import pytest

from benchmarks.common.figures import count_waits, format_seconds, pool_waits
from benchmarks.common.turn import TurnError
from benchmarks.peers import CONTESTANTS, OURS, REFERENCE, Contestant
from benchmarks.peers import __main__ as peers
from benchmarks.peers.__main__ import Results, divide, is_far_behind, judge, list_losses, make_page, make_table
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.turn import digest_batches, find_difference
from tests.support.paths import ROOT

MACHINE = {"cpu": "x", "cpus": 2, "kernel": "6", "versions": {}, "memory_bytes": 1 << 34, "load_average": 0.5}
ABOUT = {"commit": "abc", "settings": {"min_s": 2.0}, "machine": MACHINE, "command": "python -m benchmarks.peers"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.json"


@pytest.fixture
def results(path):
    """Return a function that makes results of turns: contestant, round, items/s, CPU for an item."""

    def make(*turns):
        made = Results(path, ABOUT, ["images"])
        for contestant, number, rate, cpu in turns:
            timed = {"items_per_s": rate, "cpu_s_per_item": cpu, "first_s": 0.5, "waits": {"0": 50}, "items": 100}
            made.add("images", contestant, number, figures=timed, load=1.0)
        return made

    return make


def both(own, other, rounds=6):
    return [turn for number in range(1, rounds + 1) for turn in ((OURS, number, *own), ("Grain", number, *other))]


# ---- digests

ROWS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


def digest(*batches, key="image"):
    return digest_batches({"index": np.array(rows), key: value} for rows, value in batches)


def differ(first, second, **kind):
    return find_difference(first, second, **{"is_ordered": True, "own_pixels": False, **kind})


PLAIN = digest(([0, 1], ROWS[:2]), ([2, 3], ROWS[2:]))


def test_the_same_batches_do_not_differ():
    assert differ(digest(([0, 1], ROWS[:2].copy()), ([2, 3], ROWS[2:].copy())), PLAIN) == ""


@pytest.mark.parametrize(
    "other, difference",
    [
        (digest(([0, 1], ROWS[:2])), "another number of samples"),
        (digest(([0, 1], ROWS[:2].view(np.int32)), ([2, 3], ROWS[2:].view(np.int32))), "other names, dtypes or shapes"),
        (digest(([0, 1], ROWS[:2].reshape(2, 3, 2)), ([2, 3], ROWS[2:])), "other names, dtypes or shapes"),
        (digest(([0, 1], ROWS[:2]), ([2, 3], ROWS[2:]), key="picture"), "other names, dtypes or shapes"),
        (digest(([0, 1], ROWS[:2] + 1), ([2, 3], ROWS[2:])), "other samples"),
        (digest(([2, 3], ROWS[2:]), ([0, 1], ROWS[:2])), "another order, or other batches"),
        (digest(([0, 1, 2, 3], ROWS)), "another order, or other batches"),
    ],
)
def test_a_difference_is_named(other, difference):
    assert differ(other, PLAIN) == difference


def test_order_counts_only_where_it_is_promised():
    turned = digest(([3, 2], ROWS[:1:-1]), ([1, 0], ROWS[1::-1]))
    assert differ(turned, PLAIN, is_ordered=False) == ""
    assert differ(turned, PLAIN) != ""


def test_own_pixels_must_have_the_same_dtype_and_shape():
    brighter = digest(([0, 1], ROWS[:2] + 1), ([2, 3], ROWS[2:]))
    assert differ(brighter, PLAIN, own_pixels=True) == ""
    assert differ(digest(([0, 1], ROWS[:2] > 0), ([2, 3], ROWS[2:] > 0)), PLAIN, own_pixels=True) != ""


def test_padding_counts_in_the_batch_and_not_in_the_sample():
    narrow, wide = (digest(([0], np.array([[5, 6] + [0] * more])), key="tokens") for more in (1, 2))
    assert narrow["samples"] == wide["samples"]
    assert narrow["batches"] != wide["batches"]


# ---- results by job


def test_jobs_are_merged_in_one_file(path):
    Results(path, ABOUT, ["images"]).add("images", OURS, 1, figures={"items": 1})
    second = {**ABOUT, "commit": "def"}
    Results(path, second, ["clips"]).add("clips", OURS, 1, figures={"items": 2})
    merged = Results(path)
    assert merged.jobs == ["images", "clips"]
    assert [merged.describe(job)["commit"] for job in merged.jobs] == ["abc", "def"]
    assert [merged.collect(job)[OURS]["items"] for job in merged.jobs] == [{1: 1}, {1: 2}]
    assert json.loads(path.read_text())["jobs"]["clips"]["turns"] == [
        {"contestant": OURS, "round": 1, "figures": {"items": 2}}
    ]


@pytest.mark.parametrize(
    "change, goes_on",
    [
        ({"command": "another"}, True),
        ({"commit": "def"}, False),
        ({"settings": {"min_s": 1.0}}, False),
        ({"machine": {**MACHINE, "versions": {"grain": "2"}}}, False),
        ({"machine": {**MACHINE, "load_average": 2.0}}, True),
    ],
)
def test_a_job_goes_on_only_where_its_figures_compare(results, path, change, goes_on):
    results((OURS, 1, 10, 1.0))
    assert Results(path, {**ABOUT, **change}, ["images"]).has("images", OURS, 1) is goes_on
    assert Results(path).has("images", OURS, 1)


def test_fresh_starts_the_chosen_jobs_over(results, path):
    results((OURS, 1, 10, 1.0)).add("images", "Grain", 1, reason="broke")
    assert not Results(path, ABOUT, ["images"], is_fresh=True).has("images", OURS, 1)
    assert Results(path, ABOUT, ["clips"], is_fresh=True).has("images", OURS, 1)


# ---- failures


def test_two_failures_in_a_row_exclude(results):
    found = results(("Grain", 1, 10, 1.0))
    for number, reason in ((2, "slow"), (4, "slow"), (5, "slow again")):
        assert found.find_exclusion("images", "Grain") == ""
        found.add("images", "Grain", number, reason=reason)
        if number == 2:
            found.add("images", "Grain", 3, figures={"items_per_s": 10})
    assert found.find_exclusion("images", "Grain") == "slow again"


@pytest.fixture
def turns(monkeypatch):
    """Return a list of what the next turns give, an error or figures; turns are taken without processes."""
    outcomes = []

    def run_turn(*_, **__):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(peers, "run_turn", run_turn)
    return outcomes


SAME = {"inspected": 4, "forms": 1, "samples": 2, "batches": 3}
SLOW = TurnError("did not finish within 60 s")


def take(results, *numbers):
    for number in numbers:
        peers._take(peers._Turn("images", OURS, number), results)


def test_a_timeout_loses_its_round_only(results, turns):
    found = results()
    turns += [SLOW, {"items_per_s": 1}]
    take(found, 1, 2)
    assert found.collect("images")[OURS]["items_per_s"] == {2: 1}
    assert found.list_failures("images", OURS) == [(1, "did not finish within 60 s")]


def test_two_timeouts_end_a_contestants_turns(results, turns):
    found = results()
    turns += [SLOW, SLOW, {"items_per_s": 1}]
    take(found, 1, 2, 3)
    assert len(turns) == 1
    assert found.find_exclusion("images", OURS) == "did not finish within 60 s"


@pytest.mark.parametrize(
    "own, rates, is_far",
    [
        ("Grain", (40, 30, 40), True),
        ("Grain", (40, 60, 40), False),
        ("Grain", (40, 30), False),
        (OURS, (9, 9, 9), False),
    ],
)
def test_three_rounds_below_half_the_fastest_suffice(results, own, rates, is_far):
    fastest = [("DataLoader", number, 100, 1.0) for number in range(1, len(rates) + 1)]
    found = results(*fastest, *((own, number, rate, 1.0) for number, rate in enumerate(rates, 1)))
    assert is_far_behind(found, "images", own) is is_far


def test_who_is_far_behind_takes_no_more_turns(results, turns):
    own = [("Grain", number, 40, 1.0) for number in (1, 2, 3)]
    found = results(*own, *((OURS, number, 100, 1.0) for number in (1, 2, 3)))
    turns.append({"items_per_s": 1})
    peers._take(peers._Turn("images", "Grain", 4), found)
    assert len(turns) == 1


def test_an_inspection_is_tried_again(results, turns):
    found = results()
    found.add("images", REFERENCE, 0, figures=SAME)
    turns += [SLOW, SAME]
    take(found, 0, 0)
    assert found.has("images", OURS, 0)
    assert turns == []


def test_other_samples_exclude(results, turns):
    found = results()
    found.add("images", REFERENCE, 0, figures=SAME)
    turns += [{**SAME, "samples": 9}] * 2
    take(found, 0, 1)
    assert found.find_exclusion("images", OURS) == "delivered other samples than the plain loop"
    assert not found.has("images", OURS, 0)


def test_a_missing_package_excludes(results, monkeypatch):
    monkeypatch.setitem(CONTESTANTS, OURS, Contestant(OURS, "x:y", "no_such_package"))
    found = results()
    take(found, 0, 1)
    assert found.find_exclusion("images", OURS) == "no_such_package is not installed"


# ---- waits


def test_few_waits_give_the_longest():
    pooled = pool_waits([count_waits([0.01] * 60), count_waits([0.01] * 60 + [0.5])])
    assert (pooled.count, pooled.is_p99) == (121, False)
    assert pooled.value_s == pytest.approx(0.5, rel=0.02)


def test_two_hundred_waits_give_the_percentile_of_all_rounds():
    waits_s = [number / 1000 for number in range(1, 1001)]
    pooled = pool_waits([count_waits(waits_s[:300]), count_waits(waits_s[300:])])
    assert (pooled.count, pooled.is_p99) == (1000, True)
    assert pooled.value_s == pytest.approx(0.99, rel=0.02)


# ---- tables, verdicts, page


@pytest.mark.parametrize(
    "own, other, verdicts",
    [((1000, 1.0), (900, 1.0), ["met", "met"]), ((900, 1.2), (1000, 1.0), ["missed", "missed"])],
)
def test_a_target_is_met_or_missed_where_the_whole_interval_says_so(results, own, other, verdicts):
    lines = list(judge(results(*both(own, other)), "images"))
    assert [line.rpartition(" (")[0].rpartition(": ")[2] for line in lines] == verdicts


def test_a_target_is_undecided_where_the_interval_straddles_the_limit(results):
    noisy = [
        turn
        for number, rate in enumerate((700, 1300, 800, 1200, 900, 1100), 1)
        for turn in ((OURS, number, rate, 1.0), ("Grain", number, 1000, 1.0))
    ]
    assert ": undecided (" in next(judge(results(*noisy), "images"))


def test_the_table_shows_medians_the_fastest_first_and_the_excluded_last(results):
    found = results(*both((1000, 0.002), (2000, 0.001)))
    for _ in range(2):
        found.add("images", "Ray Data", 0, reason="needs ray")
    *_, first, second, last = make_table(found, "images")
    assert first == "| Grain | 2,000 | 2.00 [2.00, 2.00] | 1 ms | 500 ms | p99 of 300: 1 s |  | 6 (97%) |"
    assert second.startswith("| **stagepipe** | 1,000 |  | 2 ms |")
    assert last.startswith("| Ray Data | *needs ray* |")


def test_lost_rounds_stand_below_the_table(results):
    found = results(*both((1000, 0.002), (2000, 0.001)))
    found.add("images", "Grain", 7, reason="slow")
    assert list(list_losses(found, "images")) == [
        "Grain failed in round 7: slow",
        "medians of 6 rounds; their intervals contain the true median with a probability of 97%",
    ]
    found.add("images", "Grain", 8, reason="slow")
    assert next(list_losses(found, "images")).endswith("round 8: slow, and was excluded after two in a row")


def test_a_ratio_is_the_quotient_of_the_medians_shown():
    found = divide({1: 2.0, 2: 4.0, 3: 9.0}, {1: 1.0, 2: 2.0})
    assert (found.value, found.low, found.high) == pytest.approx((4.0 / 1.5, 1.0, 9.0))


def test_three_rounds_name_their_coverage(results):
    found = results(*both((1000, 0.002), (300, 0.001), rounds=3))
    assert next(line for line in make_table(found, "images") if "Grain" in line).endswith("| 3 (75%) |")


def test_durations_have_three_digits_and_a_unit():
    assert [format_seconds(value) for value in (1.234, 0.0456, 7.89e-6)] == ["1.23 s", "45.6 ms", "7.89 us"]


def test_every_contestant_names_a_function_and_jobs_that_exist():
    for contestant in CONTESTANTS.values():
        module, _, function = contestant.run.partition(":")
        source = (ROOT / "benchmarks" / "peers" / f"{module}.py").read_text()
        assert f"\ndef {function}(job: Job, workers: int" in source
        assert set(contestant.jobs) <= JOBS.keys()


def test_the_tables_of_a_page_come_from_the_results(results, path):
    results(*both((1000, 0.002), (2000, 0.001)))
    made = make_page(path, "# Title\n\n<!-- TABLES -->\nearlier figures\n<!-- /TABLES -->\n\nAfter.\n")
    assert made.startswith("# Title\n")
    assert made.endswith("<!-- /TABLES -->\n\nAfter.\n")
    assert "earlier" not in made
    assert "### Images" in made
    assert "| Grain | 2,000 |" in made
    assert "- commit abc, `python -m benchmarks.peers`" in made
    assert make_page(path, made) == made
