"""Run folders: logits, log-probabilities and attention tensors recorded from real endpoints and devices.

`manifest` says where and how a run was recorded, `sequence` is what every reader yields and every comparison takes,
`folder` reads and writes, `adapters` bring the formats of inference engines in, `validate` checks all that can be wrong.
A kernel's own bits on fixed inputs are another kind of capture: `verify.capture`.
"""
