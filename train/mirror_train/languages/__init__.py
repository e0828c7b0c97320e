"""Choose a base model and a recipe for each language, and tune many languages in one run."""
