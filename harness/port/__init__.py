"""Port: a series carried to another pin, with the conflicts left for a person to solve."""
