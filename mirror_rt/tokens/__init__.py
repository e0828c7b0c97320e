"""Turn texts into token ids, and token ids into padded batches."""
