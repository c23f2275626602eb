"""Runs of a model on several coordinates, compared: the divergence report.

`build` makes a `contract.DivergenceReport` of what `verify.metrics` found; text, Markdown, page and JUnit are functions of
it, and `difference` says what changed between two.
"""
