"""The contrastive losses: InfoNCE, as in Mirror-BERT, with its kernels, and multi-similarity."""

from mirror_train.loss.infonce import first_view, infonce
from mirror_train.loss.multi_similarity import multi_similarity

__all__ = ["first_view", "infonce", "multi_similarity"]
