"""Times calls of one kernel, inside the interpreter of the arm that is measured.

Standard library and torch only, torch only inside functions: these files run in an engine's environment, loaded under a name of
their own (worker.py), and the harness imports the same files to read a workload without an engine.
"""
