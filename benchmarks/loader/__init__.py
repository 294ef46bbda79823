"""The data loading of a training loop. `__main__`, contest, rounds and tables run in the process of the benchmark.

turn and feeds run in the process of a contestant; samples and models in its workers.
"""
