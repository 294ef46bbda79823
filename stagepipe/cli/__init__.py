"""The `stagepipe` command, in the calling process. A command reads its arguments and calls a layer below; no logic.

app          mounts the commands
init         `stagepipe init`
run          `stagepipe run`
validate     `stagepipe validate`
plan         `stagepipe plan`
tune         `stagepipe tune`
top          `stagepipe top`
report       `stagepipe report`: prints, draws and compares saved reports
built_ins    `stagepipe list`
doctor       `stagepipe doctor`
bench        `stagepipe bench`
schema       `stagepipe schema`
forecasts    prints and draws forecasts; used by `plan` and `run`
reports      checks report paths; writes and prints reports
progress     the progress bar, or a line every 10 s
interrupts   Ctrl-C, SIGTERM and a closed terminal
standard_streams  stdout and stderr that are closed or full
calls        wrong calls: a file without a command, a key of the config as an option
errors       errors -> text on stderr and an exit status
json_lines   `--log-json`: stderr as lines of JSON
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.cli.app import main

__all__ = ["main"]

__getattr__ = lazy_names(
    __name__,
    {
        "main": "app",
    },
)
