"""The measurements of five write-ups, repeated. `__main__` runs them, make_page writes docs/benchmarks.md.

model, experiments, running, results, tables and verdicts run in the process of the benchmark; turn, child (a
contestant's other process), pipelines (stagepipe's side) and the mechanisms of the experiments, e1 to e5, in a turn.
E3 is benchmarks/crossover.
"""
