"""Why two specs differ on one input: where their bits part, how far that travels, and which lines account for it."""
