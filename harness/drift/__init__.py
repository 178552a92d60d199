"""Drift: what becomes of a series on another revision of its engine, and since when."""
