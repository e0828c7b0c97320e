"""Repeat the papers' studies and compare their systems."""
