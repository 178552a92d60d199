"""A public issue measured here: its workload on the engine as released, beside the numbers that were published."""
