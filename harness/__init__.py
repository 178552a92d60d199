"""The harness behind every nox session: pins -> trees -> arms -> runs -> experiments -> reports.

Each package imports only from those before it in that line (and from the flat modules here), never from those after it.
"""
