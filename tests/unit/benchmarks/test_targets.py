"""The command of the targets: what a round takes, how a figure is judged, that the table's ways do the same work."""

import json
import math
import os
import sys

import psutil

from benchmarks import targets
from benchmarks.common.turn import ROOT, run_turn
from benchmarks.targets import GOALS, Contestant, Found, Measured, apply_load, make_rows, take_round


def find_goal(text):
    return next(goal for goal in GOALS if goal.text.startswith(text))


def rounds(*values):
    return dict(enumerate(values))


def test_a_target_is_met_where_the_whole_interval_keeps_it():
    goal = find_goal("worker's CPU")
    for values, verdict in (((4.0,) * 6, True), ((4.0,) * 5 + (6.0,), None), ((9.0,) * 6, False)):
        assert goal.judge(Found({"stage": {"us": rounds(*values)}}), "quiet")[1] is verdict
    assert goal.judge(Found({"stage": {"us": rounds(*[6.0] * 6)}}), "busy")[1] is True, (
        "another limit holds beside a load"
    )


def test_a_ratio_divides_within_a_round_and_leaves_out_one_that_lacks_a_turn():
    found = Found({"stagepipe": {"us": rounds(2.0, 3.0, 8.0)}, "Pipe": {"us": {0: 1.0, 2: 2.0}}})
    assert find_goal("loop over").measure(found) == {0: 2.0, 2: 4.0}


def test_a_job_is_compared_with_the_tool_that_was_the_fastest_in_this_run():
    rates = {"stagepipe": 90.0, "DataLoader": 100.0, "joblib, loky": 120.0}
    found = Found({f"thumbnails: {tool}": {"items_per_s": rounds(rate)} for tool, rate in rates.items()})
    goal = find_goal("thumbnails: items/s")
    assert goal.against(found) == "joblib, loky"
    assert goal.measure(found) == {0: 0.75}


def test_unmeasured_figures_have_no_verdict():
    [row] = make_rows(Measured({}, []), "quiet", ["now"], ["stage"])
    assert row[-2:] == ["", "not measured"]
    assert math.isnan(find_goal("worker's CPU").judge(Found({}), "quiet")[0].value)


def test_every_row_has_contestants(tmp_path):
    for row in targets.ROWS:
        assert targets.list_contestants([row], tmp_path), row


def test_only_stagepipe_takes_a_turn_with_each_checkout():
    turns = []
    contestants = [
        Contestant("ours", lambda root: turns.append(("ours", root.name)) or {"us": 1.0}),
        Contestant("peer", lambda root: turns.append(("peer", root.name)) or {"us": 2.0}, is_own=False),
    ]
    measured = Measured({}, [])
    list(take_round(0, contestants, {"now": ROOT, "before": ROOT / "old"}, ["quiet"], measured))
    assert sorted(turns) == sorted([("ours", ROOT.name), ("ours", "old"), ("peer", ROOT.name)])
    assert measured.select("quiet", "before").divide("ours", "peer", "us") == {0: 0.5}


def test_a_turn_that_fails_is_told_and_loses_its_round():
    def fail(_root):
        raise targets.TurnError("no iceoryx2")

    measured = Measured({}, [])
    list(take_round(3, [Contestant("hop", fail)], {"now": ROOT}, ["quiet"], measured))
    assert measured.failures == ["round 3, quiet, hop now: no iceoryx2"]
    assert not measured.figures


def test_the_other_program_ends_with_its_round():
    others = set(psutil.Process().children())
    with apply_load("pinned"):
        [burner] = set(psutil.Process().children()) - others
        assert burner.cpu_affinity() == [max(os.sched_getaffinity(0))]
    assert not burner.is_running()


def test_a_turn_is_taken_by_the_code_and_the_interpreter_of_another_checkout(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    turn = "import pathlib, sys\npathlib.Path(sys.argv[2]).write_text('{\"us\": 7}')"
    (tmp_path / "old_turn.py").write_text(turn)  # only this checkout has it
    assert run_turn("old_turn", {}, 20, root=tmp_path) == {"us": 7}


def test_the_table_is_the_same_by_a_loop_and_by_the_starter(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_TABLE_ROWS", (60,))
    targets.write_tables(tmp_path)
    project = tmp_path / "60"
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    targets._loop_over_table()
    targets._run_table("inline")
    by_loop = [json.loads(line) for line in (project / "loop.jsonl").read_text().splitlines()]
    shards = sorted((project / "rows").rglob("*.jsonl"))
    assert by_loop == [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]
    assert 40 < len(by_loop) < 60


def test_the_command_prints_a_table_for_each_load(tmp_path, monkeypatch, capsys):
    figures = iter([4.0, 6.5])
    monkeypatch.setattr(
        targets, "list_contestants", lambda rows, folder: [Contestant("stage", lambda root: {"us": next(figures)})]
    )
    out = tmp_path / "targets.json"
    targets.main(["--rows", "stage", "--rounds", "1", "--json", str(out)])
    printed = capsys.readouterr().out
    assert "quiet: " in printed
    assert "busy: " in printed
    assert [rows[0][1] for rows in json.loads(out.read_text())["tables"].values()] == ["<= 5", "<= 7"]
