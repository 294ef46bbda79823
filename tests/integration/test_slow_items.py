"""The slowest items of a report have the name that errors give them."""

import time

import pytest

from stagepipe import from_source

pytestmark = pytest.mark.timeout(100)


def wait(item):
    time.sleep(0.1 if item["path"] == "dog.jpg" else 0.003)
    return item["path"]


def wait_together(items):
    time.sleep(0.01)
    return [item["path"] for item in items]


ITEMS = [{"path": "dog.jpg" if number == 9 else f"cat_{number}.jpg"} for number in range(20)]


@pytest.mark.parametrize("fuse", [False, True])
def test_a_slow_item_has_its_path(fuse):
    report = from_source(ITEMS).map(wait, fuse=fuse).run()
    assert (report.slowest[0].item, report.slowest[0].label) == ("9", "dog.jpg")
    assert {slow.label for slow in report.slowest} <= {"", *(item["path"] for item in ITEMS)}


def test_a_list_of_items_has_the_paths_of_all():
    report = from_source(ITEMS).map_batches(wait_together, batch_size=4).run()
    named = [slow for slow in report.slowest if slow.label]
    assert named
    assert all(ITEMS[int(slow.item)]["path"] == slow.label for slow in named)
