"""Check the installation, and measure the speed of an encoder."""
