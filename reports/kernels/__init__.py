"""A capture of real kernels against the specs that describe them: the report behind ``ulpscope report CAPTURE``."""
