"""The losses: InfoNCE, as in Mirror-BERT, with its kernels, and others that systems take."""

from mirror_train.loss.infonce import first_view, guided, infonce
from mirror_train.loss.multi_similarity import multi_similarity
from mirror_train.loss.soft_targets import soft_targets

__all__ = ["first_view", "guided", "infonce", "multi_similarity", "soft_targets"]
