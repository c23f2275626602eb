"""The array engine: guarded JAX arithmetic and the evaluation of a whole spec on arrays."""
