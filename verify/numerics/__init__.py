"""Exact arithmetic on number formats: rounding, operations, elementary functions and ULP distance.

Everything here is NumPy and python-flint. The scalar functions are the definition of "rounds once"; the
vectorised ones are checked against them bit for bit.
"""
