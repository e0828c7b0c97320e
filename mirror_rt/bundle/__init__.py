"""Describe a bundle on disk, and carry it to a model hub and back."""
