"""The parts of benchmarks/published.py, which reruns what five write-ups measured.

model        what a contestant, a payload and an experiment are, and what a turn tells
registry     the experiments
needs        what this machine lacks for a contestant
harness      every contestant's turns, in turns, each in a fresh process
naming       what a turn calls its files in memory
launching    a turn's process: started, waited for, ended with all that it started
turn         what runs in that process: set-up, transfers, verification, teardown
clocks       processor seconds and peak memory of both sides
child        a contestant's other process, and the connection by which it is told what to do
keeping      the results' file: written after every turn, and gone on with
asking       stagepipe's side in every experiment: a source that answers requests
e1 e2 e4 e5  the experiments and their contestants (E3 is benchmarks/crossover.py)
page         the results as docs/benchmarks.md
"""
