"""What this machine can do, and how to mend what it cannot."""
