"""Quantise vectors, compare them, and search among them."""
