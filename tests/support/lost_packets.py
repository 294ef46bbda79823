"""A start hook of workers that loses a packet between two processes, as a fault of the transport would."""

from stagepipe.runtime.protocol.worker_spec import WorkerSpec
from stagepipe.transport.sender import Sender

HOOK = f"{__name__}:lose_packet"
"""For `worker_start_hook(HOOK, "source/0:5")`: the worker `source/0` never writes its fifth packet."""


def lose_packet(spec: WorkerSpec) -> None:
    name, _, number = spec.start_hook_argument.partition(":")
    if name != f"{spec.plan.name}/{spec.worker}":
        return
    write, remaining = Sender._write_packet, int(number)

    def write_all_but_one(*arguments):
        nonlocal remaining
        remaining -= 1
        return write(*arguments) if remaining else 0

    Sender._write_packet = write_all_but_one
