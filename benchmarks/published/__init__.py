"""The parts of benchmarks/published, which repeats the measurements of five write-ups.

In the process that runs the benchmark:

model        contestants, payloads, experiments, and the results of a turn
registry     the experiments
harness      the turns of all contestants, each in a new process
launching    the process of a turn: start it, wait for it, end everything that it started
keeping      the results file: written after every turn, and resumed
progress     the progress bar
summary      the turns as rows: medians, intervals and ratios
write_ups    the published figures
page         the results as docs/benchmarks.md

In the process of a turn:

turn         set-up, transfers, verification, teardown
needs        what this machine lacks for a contestant
naming       the names of a turn's files in shared memory
clocks       processor seconds and peak memory of both sides
child        a contestant's other process, and the connection that carries commands to it
asking       stagepipe's side in every experiment: a source that answers requests
e1 e2 e4 e5  the experiments and their contestants (E3 is benchmarks/crossover)
"""
