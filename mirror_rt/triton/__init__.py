"""Export a bundle as a model repository of NVIDIA Triton."""
