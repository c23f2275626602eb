"""Where a search begins: inputs constructed from how the sides group their tokens and where they round."""
