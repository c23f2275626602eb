"""The explanation of a difference for people: a contract, and text, Markdown and a page that are functions of it."""
