"""The papers' systems side by side: tuned from one base model, evaluated on the same sets."""
