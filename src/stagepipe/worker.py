"""`python -m stagepipe.worker FD`: one worker process. Started by the supervisor; `FD` is an inherited memfd."""

from stagepipe.runtime.entry import main

if __name__ == "__main__":
    main()
