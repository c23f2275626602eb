"""Proofs about declared arithmetic: partitions, equal programs, algebra and bounds. Nothing tested is called proved."""
