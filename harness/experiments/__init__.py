"""Experiments: the plan, the order of its runs, their storage, the statistics and the verdict."""
