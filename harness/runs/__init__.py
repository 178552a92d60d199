"""Runs: one execution of a workload on an arm, its processes, its guards and how it ended."""
