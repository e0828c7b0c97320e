"""The commands that tune."""
