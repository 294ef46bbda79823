"""The parts of benchmarks/published, which repeats the measurements of five write-ups.

In the process that runs the benchmark:

model        contestants, payloads, experiments, and the results of a turn
registry     the experiments
running      the turns of all contestants, each in a new process that ends with everything it started
results      the results file, written after every turn and resumed; and its rows: medians, intervals and ratios
progress     the progress bar
write_ups    the published figures
forms        durations, ratios and tables as text
tables       the tables of each experiment
verdicts     the targets, and the contestants that are faster than stagepipe
plots        the plots
make_page    the tables and plots, put into docs/benchmarks.md

In the process of a turn:

turn         set-up, transfers, verification, teardown; processor time and peak memory of both sides
needs        what this machine lacks for a contestant; the names of a turn's files in shared memory
child        a contestant's other process, and the connection that carries commands to it
asking       stagepipe's side in every experiment: a source that answers requests
e1 e2 e4 e5  the experiments and their contestants (E3 is benchmarks/crossover)
"""
