"""Serve many languages from one language pack: tags, routing, loading on demand."""
