"""The commands that export."""
