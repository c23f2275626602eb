"""Lowering: a Triton kernel compiled without a GPU, its stages compared across architectures, its trees read.

`stages` holds what a compilation keeps, `canonical` makes it comparable, `ttgir` and `layout` say what is reduced over
which registers, lanes and warps, `sass` and `ptx` follow the floating-point data flow, `trees` reads the brackets and
`fragment` writes them as lines of a spec. Only `worker`, in a process of its own, executes the kernel's file.
"""
