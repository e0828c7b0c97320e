"""The kinds of models on their way into a bundle, each with what differs between them."""
