"""Sparse encoders: a weight for each word of the vocabulary, most of them 0."""
