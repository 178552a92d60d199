"""Pinned releases: what upstream/pins.toml says, and the package index that their files come from."""
