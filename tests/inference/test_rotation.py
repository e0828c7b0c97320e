"""The frequencies of rotary positions: those of transformers."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mirror_rt.inference.native.rotation import Rotation

SCALED = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 4096,
     "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.25},
]  # fmt: skip


@pytest.mark.parametrize("given", SCALED, ids=lambda given: given["rope_type"])
@pytest.mark.parametrize("theta", [1000.0, 500_000.0])
def test_frequencies_are_those_of_transformers(given, theta):
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=256,
                         rope_parameters=given | {"rope_theta": theta})  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](config)
    rotation = Rotation.of(given, theta)
    np.testing.assert_allclose(rotation.frequencies(64), expected.numpy(), rtol=3e-7)
    angles = np.arange(50)[:, None] * expected.numpy().astype(np.float64)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * factor
    np.testing.assert_allclose(rotation.table(64, 50), table, atol=5e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"rope_type": "longrope", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1},
        {"rope_type": "linear", "factor": True},
        {"rope_type": "linear", "factor": "4"},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 0},
        {"rope_theta": 1.0},
        {"rope_theta": -1},
    ],
    ids=str,
)
def test_others_are_refused(given):
    with pytest.raises(ValueError, match="a rotation by"):
        Rotation.of(given, 10_000.0)
