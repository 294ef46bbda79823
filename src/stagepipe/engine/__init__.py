"""Engines: a Plan in, items and a Report out. `local` runs processes on this machine, `inline` calls in this one."""

from stagepipe.engine.dead_letters import to_try_again, write_dead_letters
from stagepipe.engine.drain import drain
from stagepipe.engine.inline import InlineRun
from stagepipe.engine.local import LocalRun
from stagepipe.engine.pipeline import Pipeline
from stagepipe.engine.resume import StateFile

__all__ = ["InlineRun", "LocalRun", "Pipeline", "StateFile", "drain", "to_try_again", "write_dead_letters"]
