"""Read texts, write vectors, and write files whole or not at all."""
