"""A script that forks in the middle of an epoch, lets the child use the pipeline, and then reads the rest.

Called with the name of a child's action. Prints what the child did, then the items and the number of restarts.
"""

# ruff: noqa: T201
import ctypes
import gc
import os
import select
import sys
import time

from stagepipe import Pipeline, UsageError

COUNT = 40
CONFIG = {
    "name": "forked",
    "source": {"uses": "stagepipe.sources.numbers", "with": {"count": COUNT}},
    "stages": [{"name": "neg", "uses": "operator.neg", "workers": 2}],
    "window": 6,
}


def read_own_pipeline(pipeline, items):
    with Pipeline({**CONFIG, "source": {"uses": range(3)}}) as own:
        print(list(own), end=" ")


def collect(pipeline, items):
    pipeline.__dict__.clear()
    items.__dict__.clear()
    gc.collect()
    print("inert", flush=True)
    os._exit(3)


ACTIONS = {
    "close": lambda pipeline, items: pipeline.close(),
    "leave": lambda pipeline, items: pipeline.__exit__(None, None, None),
    "exit": lambda pipeline, items: sys.exit(3),
    "next": lambda pipeline, items: next(items),
    "iter": lambda pipeline, items: iter(pipeline),
    "len": lambda pipeline, items: len(pipeline),
    "progress": lambda pipeline, items: pipeline.progress(),
    "report": lambda pipeline, items: pipeline.report(),
    "state": lambda pipeline, items: pipeline.load_state_dict(pipeline.state_dict()),
    "dead letters": lambda pipeline, items: pipeline.dead_letters,
    "collect": collect,
    "own pipeline": read_own_pipeline,
}


def run_child(action, pipeline, items):
    """Fork a child that acts; return its exit code, or None if it hangs."""
    pid = os.fork()
    if not pid:
        try:
            ACTIONS[action](pipeline, items)
            print("inert", flush=True)
        except UsageError as error:
            print(error, flush=True)
        raise SystemExit(3)  # through the `with` block and the interpreter's exit
    pidfd = os.pidfd_open(pid)
    if not select.select([pidfd], (), (), 30)[0]:
        os.kill(pid, 9)
        return None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    with Pipeline(CONFIG) as pipeline:
        items = iter(pipeline)
        received = [next(items) for _ in range(3)]
        for action in sys.argv[1].split(","):
            print(f"{action}:", end=" ", flush=True)
            code = run_child(action, pipeline, items)
            print(f"{action} exit code {code}", flush=True)
            received.append(next(items))
        received += items
        print("items", received == [-number for number in range(COUNT)], flush=True)
        print("restarts", len(pipeline.report().restarts), flush=True)


def hold_the_gil(number):
    """Let no other thread of the worker see that its parent has gone."""
    return ctypes.PyDLL(None).sleep(60 if number else 0)


def outlive():
    """Fork a child that sleeps, print the pids of the workers, and wait to be killed."""
    import psutil

    with Pipeline({**CONFIG, "stages": [{"name": "hang", "uses": hold_the_gil}]}) as pipeline:
        next(iter(pipeline))
        time.sleep(0.3)  # the worker has begun the next item
        workers = [child.pid for child in psutil.Process().children()]
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        print(child, *workers, flush=True)
        time.sleep(60)


if __name__ == "__main__":
    outlive() if sys.argv[1] == "outlive" else main()
