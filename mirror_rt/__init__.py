"""mirror_rt: run tuned text encoders with numpy, tokenizers and onnxruntime alone.

>>> from mirror_rt import Encoder
>>> encoder = Encoder.load("bundle/")
>>> encoder.encode(["first text", "second text"]).shape
(2, 384)
"""

from importlib.metadata import version as _version

from mirror_rt.encoder import Encoder
from mirror_rt.errors import (
    BundleError,
    BundleIntegrityError,
    BundleVersionError,
    ConfigError,
    DataError,
    HubError,
    InvalidTextError,
    MirrorError,
    MissingDependencyError,
    ModelError,
    OutputExistsError,
    ParityError,
    ProcessGroupError,
    ProviderError,
)
from mirror_rt.manifest import Manifest

__version__ = _version("mirror-rt")

__all__ = [
    "BundleError",
    "BundleIntegrityError",
    "BundleVersionError",
    "ConfigError",
    "DataError",
    "Encoder",
    "HubError",
    "InvalidTextError",
    "Manifest",
    "MirrorError",
    "MissingDependencyError",
    "ModelError",
    "OutputExistsError",
    "ParityError",
    "ProcessGroupError",
    "ProviderError",
    "__version__",
]
