"""Measuring this machine: what a message costs to carry, on a real hop to another process and back.

trip        the hop and its two processes; echo: the other one
measuring   ways and sizes by turns, in under a second, and the curves through them
kept        the curves in the user's cache folder
"""

from stagepipe.plan.calibration.kept import keep, load
from stagepipe.plan.calibration.measuring import TIMING_HOW, measure

__all__ = ["TIMING_HOW", "keep", "load", "measure"]
