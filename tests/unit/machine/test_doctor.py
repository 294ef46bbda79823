"""The checks of `stagepipe doctor` where this machine cannot be made to fail for real."""

import importlib.util
import os
import platform

import pytest

from stagepipe.machine import CheckStatus, diagnose
from stagepipe.machine.doctor import check_kernel, check_packages, check_packet_pipe, check_torch


@pytest.mark.parametrize(
    "release, status",
    [("5.2.21-generic", CheckStatus.FAIL), ("5.3.0", CheckStatus.OK), ("6.18.44-fc", CheckStatus.OK)],
)
def test_kernel_without_pidfds_fails(monkeypatch, release, status):
    monkeypatch.setattr(platform, "release", lambda: release)
    check = check_kernel()
    assert (check.status, check.value) == (status, f"Linux {release}")
    assert ("5.3" in check.fix) is (status is CheckStatus.FAIL)


def test_another_system_fails_and_only_portable_checks_follow(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    first, *others = diagnose()
    assert first.status is CheckStatus.FAIL
    assert "--inline" in first.fix
    assert [check.name for check in others] == ["Python", "packages", "torch"]


def test_sockets_in_the_place_of_packet_pipes_are_a_warning(monkeypatch):
    def refuse(flags):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "pipe2", refuse)
    check = check_packet_pipe()
    assert check.status is CheckStatus.WARN
    assert "sockets are used instead" in check.value


def test_required_packages_are_those_of_the_installation():
    check = check_packages()
    assert check.status is CheckStatus.OK, check.value
    assert all(f"{name} " in check.value for name in ("numpy", "pyzmq", "typer", "msgspec"))
    assert not any(f"{name} " in check.value for name in ("pillow", "torch"))  # of extras


def test_a_missing_torch_is_no_failure(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    check = check_torch()
    assert check.status is CheckStatus.OK
    assert "pip install 'torch>=" in check.value
