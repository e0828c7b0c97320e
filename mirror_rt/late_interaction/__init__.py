"""Score documents by late interaction: a vector of each token, as ColBERT has them."""
