"""Apply task heads to the vectors of texts: labels and scores without torch."""
