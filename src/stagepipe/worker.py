"""`python -m stagepipe.worker LAUNCH CRASH LIFE`: one worker process. It inherits these descriptors."""

import contextlib
import os
import sys


def _end_if_late(life_fd: int) -> None:
    """The supervisor may have died after it started us and before it bound our life to its own."""
    with contextlib.suppress(BlockingIOError):
        if os.read(life_fd, 1) == b"":
            os._exit(1)


if __name__ == "__main__":
    _end_if_late(int(sys.argv[3]))  # before the imports, which may take seconds
    from stagepipe.runtime.entry import main

    main()
