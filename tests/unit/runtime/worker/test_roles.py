"""A stage takes the items that came together in one step, each under its own name; a slow one takes only a few."""

from __future__ import annotations

import time

import pytest

from stagepipe.plan import StagePlan
from stagepipe.runtime.execution import StageRunner
from stagepipe.runtime.worker import roles
from stagepipe.runtime.worker.hop_output import WorkerContext
from stagepipe.runtime.worker.roles import StageRole
from stagepipe.spec import Target
from stagepipe.timing import Board, BoardLayout, ProcessCounter, make_board_fd
from stagepipe.transport import TransportRule
from tests.support.packets import hold_all
from tests.support.transport.hops import LoopbackHop

ITEMS = 40


class Output:
    """Notes the items that it gets, and the item that the board names meanwhile."""

    def __init__(self, region):
        self.region = region
        self.items = []
        self.named = []

    def send_item(self, key, box, samples, meta):
        self.items.append((*key, box.pop()))
        self.named.append(self.region[ProcessCounter.CURRENT_ITEM_PLUS_ONE] - 1)


@pytest.fixture(name="make_role")
def role_maker():
    """Makes a role of one stage, before which `ITEMS` plain items lie in a packet, and its output."""
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    sender = loop.hop.sender
    hold_all(sender)
    layout = BoardLayout(1, (1,))
    region = Board(make_board_fd(layout), layout).region(0)

    def make_role(function):
        for number in range(ITEMS):
            loop.hop.send(number, 0, (number,))
        sender.flush()
        plan = StagePlan(name="stage", index=1, target=Target(function, {}))
        stage = StageRunner(plan, 0, 0, None, region.stage_region(0))
        output = Output(region)
        return StageRole([stage], output, loop.hop.receiver, WorkerContext(region, bool, lambda: None)), output

    with loop.stack:
        yield make_role


def test_quick_items_of_a_packet_take_one_step(make_role, monkeypatch):
    monkeypatch.setattr(roles, "_MAX_STEP_NS", 10**12)  # on a busy machine, quick items may take as long as slow ones
    role, output = make_role(lambda item: -item)
    role.step()
    assert len(output.items) > 1
    while len(output.items) < ITEMS:
        role.step()
    assert output.items == [(number, -number) for number in range(ITEMS)]
    assert output.named == list(range(ITEMS))


def test_a_seek_does_not_wait_for_slow_items_of_a_packet(make_role):
    role, output = make_role(lambda item: time.sleep(0.001) or item)
    role.step()
    assert len(output.items) <= 2
