"""E5: functions called side by side in threads and in processes, and what putting objects through a queue costs."""

from published_.e5.contestants import CALLS, QUEUES

__all__ = ["CALLS", "QUEUES"]
