"""Readers of the published formats of evaluation sets, a module a task."""
