"""Read the published formats of evaluation sets, in one module per task."""
