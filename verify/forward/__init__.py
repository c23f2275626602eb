"""Predicted logits: a decoder forward in which every kernel's arithmetic is declared.

`architecture` says what a model is, `weights` what it must hold; `huggingface` and `gguf_file` read it. `config` is
``model.toml``: which arithmetic attention, matrix products, norms and casts have. `plain` is the forward in plain f32,
`staged` the one in declared arithmetic; `predict` chooses. `cli` is ``ulpscope predict``.
"""
