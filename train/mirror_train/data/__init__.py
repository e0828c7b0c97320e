"""Read training data and make the views and batches of a run from it."""
