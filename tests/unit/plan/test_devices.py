"""`device`: the GPU that each worker of a stage sees."""

import pytest

from stagepipe.config import load
from stagepipe.core import UsageError
from stagepipe.machine import Machine, machine
from stagepipe.plan import make_plan
from stagepipe.plan.planner import assign_devices
from stagepipe.spec import StageSpec, Target
from tests.support.pipelines import outputs, pipeline, stage
from tests.unit.plan.test_planner import CURVES


def detect_on(device):
    return StageSpec(name="detect", target=Target("my_ops.detect"), device=device)


@pytest.mark.parametrize(
    "device,available,expected",
    [
        (None, ("0",), None),
        ("cuda", ("0", "1"), ("0", "1", "0", "1", "0")),
        ("cuda", ("GPU-a",), ("GPU-a",) * 5),
        ("cuda:1", ("3", "7"), ("7",) * 5),
        ("cpu", ("0", "1"), ("",) * 5),
        ("cpu", (), ("",) * 5),
    ],
)
def test_workers_are_spread_over_the_devices(device, available, expected):
    assert assign_devices(detect_on(device), 5, available) == expected


@pytest.mark.parametrize("device,available", [("cuda", ()), ("cuda:0", ()), ("cuda:1", ("0",)), ("cuda:2", ("0", "1"))])
def test_a_missing_device_is_named(device, available):
    with pytest.raises(UsageError, match=rf"stages.detect.device: {device}, but"):
        assign_devices(detect_on(device), 1, available)


@pytest.mark.parametrize(
    "value,expected", [("", ()), ("-1", ()), ("0", ("0",)), ("2, 3", ("2", "3")), ("GPU-8a,MIG-1", ("GPU-8a", "MIG-1"))]
)
def test_visible_devices_come_from_the_environment(monkeypatch, value, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert machine.detect_machine().cuda_devices == expected


def test_without_the_variable_they_come_from_the_driver(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_NVIDIA_GPU_DIR", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert machine.detect_machine().cuda_devices == ("0", "1")
    monkeypatch.setattr(machine, "_NVIDIA_GPU_DIR", tmp_path / "nothing")
    assert machine.detect_machine().cuda_devices == ()


def test_a_plan_assigns_devices_to_each_process():
    config = pipeline(stage("double", device="cuda", workers=2), stage("plus", device="cpu"), stage("same"))
    plan = make_plan(load(config), Machine(4, 8 << 30, ("0", "1")), CURVES)
    assert [process.visible_devices for process in plan.processes] == [None, ("0", "1"), ("",), None]
    with pytest.raises(UsageError, match=r"stages.double.device"):
        make_plan(load(config), Machine(4, 8 << 30), CURVES)


def test_a_worker_sees_its_assigned_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    read = stage("os.getenv", name="read", field={"key": "name"})
    source = {"uses": [{"name": "CUDA_VISIBLE_DEVICES"}] * 40}
    seen = [item["name"] for item in outputs(pipeline({**read, "device": "cuda", "workers": 2}, source=source))]
    assert set(seen) <= {"4", "5"}
    for device, expected in (("cuda:1", "5"), ("cpu", "")):
        assert [item["name"] for item in outputs(pipeline({**read, "device": device}, source=source))] == [
            expected
        ] * 40
