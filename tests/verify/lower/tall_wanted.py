"""The example with 64 query rows and tiles of 64 keys: other tensor-core instructions on each architecture."""

from dataclasses import replace

from tests.verify.lower.example_wanted import KERNELS as EXAMPLE

KERNELS = [replace(EXAMPLE[0], constexprs={"ROWS": 64, "TILE": 64, "DIM": 128})]
