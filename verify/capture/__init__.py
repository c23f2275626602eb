"""Captures of shipped kernels: run them on a fixed set of inputs, keep the bits, and set the emulators against them.

`inputs` makes the inputs, `producers` run the libraries, `manifest` and `format` are the file, `kernels` says which
spec describes which kernel and which array is which site, `judge` compares. Nothing here is imported by `emulate`.
"""
