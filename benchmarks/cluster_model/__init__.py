"""Which engine wins on how many machines: a formula from measured costs, and a simulation that checks it.

`costs` has the parameters, `formula` the limits, `simulation` the queues, `measure` what is measured on Ray.
"""
