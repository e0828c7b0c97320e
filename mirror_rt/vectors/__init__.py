"""Normalise, quantise, compare and search vectors."""
