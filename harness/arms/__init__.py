"""Arms: a tree on a bench environment, what every process of it loads, and how two arms differ."""
