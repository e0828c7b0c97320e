"""Decide which requests are let in, and say why one is refused."""
