"""Which program made these numbers: candidates (a spec on a platform) ranked against a capture.

`observations` takes attention problems with their results out of a capture, `candidates` lists what could have made
them, `predict` computes every candidate's distance from each position, `likelihood` ranks them, `identify` puts it
together.
"""
