"""`device`: which GPU each worker of a stage sees."""

import pytest

from stagepipe.config import load
from stagepipe.core import UsageError
from stagepipe.plan import Machine, machine, make_plan
from stagepipe.plan.devices import devices_of
from tests.plan.test_make import CURVES
from tests.zoo.pipelines import outputs, pipeline, stage


@pytest.mark.parametrize(
    "device,found,expected",
    [
        (None, ("0",), None),
        ("cuda", ("0", "1"), ("0", "1", "0", "1", "0")),
        ("cuda", ("GPU-a",), ("GPU-a",) * 5),
        ("cuda:1", ("3", "7"), ("7",) * 5),
        ("cpu", ("0", "1"), ("",) * 5),
        ("cpu", (), ("",) * 5),
    ],
)
def test_workers_are_spread_over_the_devices(device, found, expected):
    assert devices_of("detect", device, 5, found) == expected


@pytest.mark.parametrize("device,found", [("cuda", ()), ("cuda:0", ()), ("cuda:1", ("0",)), ("cuda:2", ("0", "1"))])
def test_a_device_that_is_not_there_is_named(device, found):
    with pytest.raises(UsageError, match=rf"stages.detect.device: {device}, but"):
        devices_of("detect", device, 1, found)


@pytest.mark.parametrize(
    "value,expected", [("", ()), ("-1", ()), ("0", ("0",)), ("2, 3", ("2", "3")), ("GPU-8a,MIG-1", ("GPU-8a", "MIG-1"))]
)
def test_what_the_process_sees_is_what_the_environment_says(monkeypatch, value, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert machine.this_machine().cuda_devices == expected


def test_else_what_the_driver_says(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_GPUS", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert machine.this_machine().cuda_devices == ("0", "1")
    monkeypatch.setattr(machine, "_GPUS", tmp_path / "nothing")
    assert machine.this_machine().cuda_devices == ()


def test_a_plan_gives_each_process_its_own():
    config = pipeline(stage("double", device="cuda", workers=2), stage("plus", device="cpu"), stage("same"))
    plan = make_plan(load(config), Machine(4, 8 << 30, ("0", "1")), CURVES)
    assert [process.devices for process in plan.processes] == [None, ("0", "1"), ("",), None]
    with pytest.raises(UsageError, match=r"stages.double.device"):
        make_plan(load(config), Machine(4, 8 << 30), CURVES)


def test_a_worker_sees_what_it_is_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    read = stage("os.getenv", name="read", field={"key": "name"})
    source = {"uses": [{"name": "CUDA_VISIBLE_DEVICES"}] * 40}
    found = [item["name"] for item in outputs(pipeline({**read, "device": "cuda", "workers": 2}, source=source))]
    assert set(found) <= {"4", "5"}
    for device, expected in (("cuda:1", "5"), ("cpu", "")):
        assert [item["name"] for item in outputs(pipeline({**read, "device": device}, source=source))] == [
            expected
        ] * 40
