"""Export many models in one run: a language pack, resumable, several models at a time."""
