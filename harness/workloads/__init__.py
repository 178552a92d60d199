"""Workloads: which of an engine's own benchmark scripts is run, with which model and arguments, and how its result is read."""
