"""BERT-flow (Li et al. 2020) and BERT-CF (Hu): a normalising flow after an encoder's pooling."""

from typing import TYPE_CHECKING

from mirror_rt.lazy_exports import lazy_exports
from mirror_train.recipes.systems import CfRecipe, FlowRecipe
from mirror_train.training.run_config import CfConfig, FlowConfig

if TYPE_CHECKING:
    from mirror_train.flow.contrastive import tune_cf
    from mirror_train.flow.likelihood import tune_flow

__all__ = ["CfConfig", "CfRecipe", "FlowConfig", "FlowRecipe", "tune_cf", "tune_flow"]

__getattr__ = lazy_exports(__name__, __all__, ("likelihood", "contrastive"), extra="train")
