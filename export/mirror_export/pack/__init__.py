"""Export many models in one run as a language pack: resumable, several models at a time."""
