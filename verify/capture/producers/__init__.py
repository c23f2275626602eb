"""What runs real kernels. A module here has three functions, of which a kernel's name is the first argument.

``available(kernel) -> str | None`` says why it cannot run here; ``libraries(kernel)`` what it comes from, the one whose
version counts first; ``run(kernel, call) -> Produced`` runs it once. Libraries are imported inside functions alone.
"""
