"""InfoNCE over cosines: the loss of Mirror-BERT, and the kernels that compute it."""

from mirror_train.loss.infonce import infonce

__all__ = ["infonce"]
