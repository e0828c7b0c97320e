"""Turn windows of texts into vectors with any model: options, prompts, batches, results."""
