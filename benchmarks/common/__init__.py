"""What the benchmarks share. It runs in the process that measures.

command   options, the last line, the JSON, rows of one figure each
figures   medians and ratios with their intervals
machine   the machine, its software and its load
turn      a contestant's turn in a new process
turns     the order of the contestants in a round, and the end of a process
placing   the processors that the two sides run on
usage     processor time and memory of processes
targets   a target, the value measured, and the verdict
"""
