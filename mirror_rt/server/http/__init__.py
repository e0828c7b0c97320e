"""Speak HTTP: connections, routes, and the protocols of OpenAI and text-embeddings-inference."""
