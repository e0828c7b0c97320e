"""BERT-flow (Li et al. 2020) and BERT-CF (Hu): a normalising flow behind an encoder's pooling."""

from mirror_train.flow.contrastive import CfConfig, tune_cf
from mirror_train.flow.likelihood import FlowConfig, tune_flow
from mirror_train.flow.recipe import CfRecipe, FlowRecipe

__all__ = ["CfConfig", "CfRecipe", "FlowConfig", "FlowRecipe", "tune_cf", "tune_flow"]
