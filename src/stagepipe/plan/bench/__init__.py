"""What `stagepipe bench` does: the hop's curves at length, beside what the standard library offers, in the same run.

model       what was found: points by mechanism and size, the curves, the crossover in words. Pure
peers       multiprocessing's Pipe, Queue and SharedMemory, each with a producer in a process of its own
schedule    the measuring: everybody by turns, within a bound of time
table       what was found, for the terminal
picture     the same as a picture, by matplotlib
"""

from stagepipe.plan.bench.model import COLD, HOP, PEERS, SIZES, Bench, Point, to_json

__all__ = ["COLD", "HOP", "PEERS", "SIZES", "Bench", "Point", "to_json"]
