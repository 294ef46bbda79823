"""The `stagepipe` command, in the calling process. A command reads its arguments and calls a lower layer; no logic.

app        mounts the commands; hints for wrong calls
run        `stagepipe run`
islands    `stagepipe run` with a local pipeline on each node of a cluster
validate   `stagepipe validate` and `stagepipe schema`
plan       `stagepipe plan`; the forecasts that `run` prints
tune       `stagepipe tune`
report     `stagepipe report`; checks report paths, writes and prints reports
built_ins  `stagepipe list` and `stagepipe init`
machine    `stagepipe doctor` and `stagepipe bench`
progress   the progress bar, or a line every 10 s; `--log-json`; `stagepipe top`
errors     errors -> text on stderr and an exit status; signals; stdout and stderr that are closed or full
"""

from stagepipe.cli.app import main

__all__ = ["main"]
