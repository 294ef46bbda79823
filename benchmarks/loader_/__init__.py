"""The parts of benchmarks/loader.py.

job         what a contestant's process is asked for, and what it answers
contest     who takes part in what, and how each is started
samples     prepared samples, the order in which they come, and a dataset of them
collating   a batch of prepared samples: stagepipe's source and stages
images      the quickstart's pipeline, and the same functions as a dataset
models      three models of 400 MB: a stage, and a dataset that holds all three
feeds       stagepipe and DataLoader behind one interface: an epoch is an iterator
reference   what the first epoch must be, made in one process without any transport
digest      the check that what arrives is right
measuring   an epoch: waits, items a second, CPU time
tree        the processor time and the memory of a process and all below it
child       a contestant's process
rounds      who is measured when, each time in a fresh process
tables      what is printed
targets     what the figures must be
"""
