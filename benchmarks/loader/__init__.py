"""The data loading of a training loop. `__main__`, contest, rounds and tables run in the process of the benchmark.

child, feeds and measuring run in the process of a contestant; samples, models and datasets in its workers.
"""
