"""Evaluate any encoder: a bundle in production as well as a model in training."""

from mirror_rt.evaluation.geometry import Geometry, cosine_pairs, evaluate_geometry
from mirror_rt.evaluation.readers.pairs import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.similarity import evaluate_similarity
from mirror_rt.evaluation.statistics import spearman

__all__ = [
    "Geometry",
    "ScoredPairs",
    "cosine_pairs",
    "evaluate_geometry",
    "evaluate_similarity",
    "read_scored_pairs",
    "spearman",
]
