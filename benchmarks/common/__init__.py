"""What the benchmarks share. It runs in the process that measures.

figures   medians and ratios with their intervals
machine   the machine, its software and its load
turns     the order of the contestants in a round
placing   the processors that the two sides run on
targets   a target, the value measured, and the verdict
"""
