"""Paged decode attention: one query token per request over a paged KV cache."""
