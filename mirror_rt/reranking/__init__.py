"""Score pairs of texts with a cross-encoder, and rank documents by a query."""
