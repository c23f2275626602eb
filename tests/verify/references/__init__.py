"""Second programs for kernels of which nothing is recorded: one module a kernel, NumPy and Python integers alone.

They are written from the kernels' sources (repository, commit and path in each module), apart from the specs and from
both walkers, so that an agreement bit by bit says something. Nothing here imports `specs` or `verify`.

Values are float32 arrays that hold values of their formats exactly; 16-bit formats are named "bf16" and "f16".
Query rows of one KV head come as [rows, d], keys and values of that head as [n, d].
"""
