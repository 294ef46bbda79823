"""The parts of benchmarks/loader.

In the process that runs the benchmark:

contest     the contestants of each part
job         the request to a contestant's process, and its answer
rounds      the rounds: each turn in a new process
tables      the printed tables
targets     the limits that the figures must meet

In the process of a contestant:

child       the entry point
making      creates the contestant
feeds       stagepipe and DataLoader behind one interface: an epoch is an iterator
measuring   the epochs: waits, items per second, CPU time
digest      the check of what arrives

In the workers of a contestant:

samples     prepared samples and inputs, and stagepipe's sources of them
collating   a batch of prepared samples: stagepipe's stages and configs
images      the quickstart's pipeline, and the changes to its config
models      three models of 400 MB, and the pipeline that runs them
datasets    DataLoader's datasets, and the sampler of their keys
"""
