"""Measuring an engine: the work it is given, and what the machine could do."""
