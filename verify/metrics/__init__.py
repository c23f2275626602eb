"""Comparison of runs: alignment, metrics over values, distributions and decisions, repeats, depth, health.

`compare` is the entry: it streams the rows of all runs once, in blocks, with the work of the softmax done once a run, and
returns frozen results. The other modules each hold one kind of metric, on arrays, and can be used alone.
"""
