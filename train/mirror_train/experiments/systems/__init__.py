"""Compare the papers' systems: tune all from one base model, evaluate all on the same sets."""
