"""Every crash point finds its method, and a worker dies at the crash point that it passes."""

import pytest

from stagepipe import Pipeline
from stagepipe.testing.crash_points import CRASH_POINTS, CrashPoint, crash_workers_at, find_defining_owners
from stagepipe.transport import Sender
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)


class Stale:
    """A class without the method of a crash point."""


@pytest.mark.parametrize("name", sorted(CRASH_POINTS))
def test_every_crash_point_finds_its_method(name):
    point = CRASH_POINTS[name]
    owners = find_defining_owners(point)
    assert owners
    assert all(callable(vars(owner)[point.method]) for owner in owners)


@pytest.mark.parametrize("owners", [(Sender,), (Sender, Stale)], ids=["no owner", "one owner without it"])
def test_a_stale_method_name_is_refused(owners):
    with pytest.raises(AttributeError, match="does not define `renamed_long_ago`"):
        find_defining_owners(CrashPoint(owners, "renamed_long_ago", is_after=True))


def test_an_owner_without_the_method_is_named():
    with pytest.raises(AttributeError, match="crash point: Stale does not define `send`"):
        find_defining_owners(CrashPoint((Sender, Stale), "send", is_after=True))


@pytest.mark.parametrize("point", ["send.after", "seek.before"])
def test_a_worker_dies_at_its_crash_point_and_loses_nothing(point):
    with (
        crash_workers_at(f"{point}:1:double/0"),
        Pipeline(pipeline(stage("double"), stage("same"), source=30)) as running,
    ):
        assert list(running) == [2 * number for number in range(30)]
        report = running.report()
    assert [f"{restart.stage}/{restart.worker}" for restart in report.restarts] == ["double/0"]
    assert all("SIGKILL" in restart.cause for restart in report.restarts)


def test_no_worker_dies_outside_the_context():
    with crash_workers_at("send.after:1:*"):
        pass
    with Pipeline(pipeline(stage("double"), source=5)) as running:
        assert list(running) == [0, 2, 4, 6, 8]
        assert not running.report().restarts


def test_an_unknown_crash_point_is_refused_by_name():
    with (
        pytest.raises(ValueError, match=r"^send\.during:1:\*: there is no crash point 'send\.during'; use one of "),
        crash_workers_at("send.after:1:* send.during:1:*"),
    ):
        pass
