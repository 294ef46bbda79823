"""E5: functions called in parallel in threads and in processes, and the cost of objects through a queue.

functions    the functions that are called
calls        how they are called: in threads, processes, a pool, stages
queues       objects through a queue
contestants  both experiments
"""

from benchmarks.published.e5.contestants import CALLS, QUEUES

__all__ = ["CALLS", "QUEUES"]
