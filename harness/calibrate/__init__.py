"""What base against base says about a device: spread, between-process offset, false alarms, the smallest effect to be found."""
