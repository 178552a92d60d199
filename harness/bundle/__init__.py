"""Offline kits: what a GPU host without a network needs to run the engines, in parts small enough to carry."""
