"""Series: read, applied, exported, locked and linted."""
