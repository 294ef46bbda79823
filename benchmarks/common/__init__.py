"""What the benchmarks share. It runs in the process that measures.

figures   medians and ratios with their intervals
machine   the machine, its software and its load
rows      rows of one figure each, in interleaved rounds
turn      a contestant's turn in a new process
turns     the order of the contestants in a round
placing   the processors that the two sides run on
usage     processor time and memory of processes
targets   a target, the value measured, and the verdict
"""
