"""Say what is installed and whether it fits together; measure an encoder."""
