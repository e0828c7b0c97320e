"""Options as data: dataclasses to command lines, and values from flags, variables and files."""
