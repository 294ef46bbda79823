"""`python -m stagepipe.worker SPEC_FD CRASH_LOG_FD LIFETIME_FD`: one worker process, on inherited descriptors.

The supervisor starts it; users do not.
"""

import sys

from stagepipe.core import ExitWithoutTeardown, exit_if_orphaned

if __name__ == "__main__":
    exit_if_orphaned(int(sys.argv[3]))  # before the imports, which may take seconds
    process_exit = ExitWithoutTeardown()
    from stagepipe.runtime import install_lazy_seeding, worker_main

    install_lazy_seeding()
    worker_main(int(sys.argv[1]), int(sys.argv[2]), process_exit.adopt)
    process_exit.status = 0
