"""The frameworks: each runs any job, by the advice of its own documentation. One function each: `run(job, workers)`.

A function takes a job and the number of workers, and yields batches (or items, for a job without batches).
"""
