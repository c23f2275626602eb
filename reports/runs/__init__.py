"""Runs of a model on several coordinates, compared: the divergence report.

`build` makes a `contract.DivergenceReport` of what `verify.metrics` found; text, Markdown and JUnit are functions of it.
"""
