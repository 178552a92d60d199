"""The engine's own tests, run on the base and on the patched tree and compared test by test."""
