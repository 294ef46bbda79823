"""A forked child neither waits for its parent's copies nor unpins its blocks: CUDA does not work there."""

import os

from stagepipe.torch.transfer import DeviceTransfer


class Refusing:
    def __getattr__(self, name):
        raise AssertionError(f"a forked child called {name}")


def test_a_child_does_not_touch_copies_and_blocks():
    transfer = DeviceTransfer(pin_memory=True, registrar=Refusing(), find_lease=lambda *_: None)
    transfer._pending_copies.append(([Refusing()], None))
    pid = os.fork()
    if not pid:
        try:
            transfer.release_blocks()
            transfer.close()
            os._exit(0)
        except AssertionError:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(transfer._pending_copies) == 1
    transfer._pending_copies.clear()
