"""What workers print, log and warn, carried from the worker to the caller.

records         how output travels through the pipe and how the caller sees it; in every process
worker_handler  redirects a worker's stdout, stderr, logging and warnings; in the worker
line_reader     turns one worker's bytes into lines and limits their rate; in the caller's process
collector       reads the pipes of all workers on a thread; in the caller's process
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.logs.collector import OutputCollector
    from stagepipe.runtime.logs.records import OutputCallback, OutputLine, forward_output
    from stagepipe.runtime.logs.worker_handler import redirect_output

__all__ = ["OutputCallback", "OutputCollector", "OutputLine", "forward_output", "redirect_output"]

__getattr__ = lazy_names(
    __name__,
    {
        "OutputCallback": "records",
        "OutputCollector": "collector",
        "OutputLine": "records",
        "forward_output": "records",
        "redirect_output": "worker_handler",
    },
)
