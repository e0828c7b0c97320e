"""mirror_rt: run tuned text encoders with numpy and tokenizers alone.

>>> from mirror_rt import Encoder
>>> encoder = Encoder.load("bundle/")
>>> encoder.encode(["first text", "second text"]).shape
(2, 384)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import mirror_rt._core  # noqa: F401
except ModuleNotFoundError:  # say so here, before a module that needs it fails less clearly
    raise ImportError(
        f"{__path__[0]} is the source folder of mirror_rt, without its compiled part: start Python "
        "in another folder to use an installed mirror_rt, or run `pip install -e .` here",
        name=__name__,  # lets `python -m mirror_rt.cli` report the error in one line
    ) from None

from mirror_rt.bundle.manifest import Manifest
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import (
    BundleError,
    BundleIntegrityError,
    BundleVersionError,
    ClosedError,
    ConfigError,
    DataError,
    DeadlineError,
    HubError,
    InvalidTextError,
    MirrorError,
    MissingDependencyError,
    ModelError,
    NonFiniteError,
    OutputExistsError,
    OverloadedError,
    ParityError,
    ProcessGroupError,
    ProviderError,
    ReentrantCallError,
    ServerError,
    UnknownOptionError,
)
from mirror_rt.pipeline.pipeline import EncodedTexts
from mirror_rt.vectors.quantization import calibration_ranges, quantize_embeddings
from mirror_rt.vectors.search import SearchResult, search

if TYPE_CHECKING:
    from mirror_rt.client import AsyncClient, Client
    from mirror_rt.heads.predictor import Predictor
    from mirror_rt.languages.language_pack import LanguagePack
    from mirror_rt.late_interaction.encoder import MultiVectorEncoder
    from mirror_rt.reranking.reranker import Reranker
    from mirror_rt.scheduling import Scheduler
    from mirror_rt.sparse.sparse_encoder import SparseEncoder

    __version__: str

__all__ = [
    "AsyncClient",
    "BundleError",
    "BundleIntegrityError",
    "BundleVersionError",
    "Client",
    "ClosedError",
    "ConfigError",
    "DataError",
    "DeadlineError",
    "EncodedTexts",
    "Encoder",
    "HubError",
    "InvalidTextError",
    "LanguagePack",
    "Manifest",
    "MirrorError",
    "MissingDependencyError",
    "ModelError",
    "MultiVectorEncoder",
    "NonFiniteError",
    "OutputExistsError",
    "OverloadedError",
    "ParityError",
    "Predictor",
    "ProcessGroupError",
    "ProviderError",
    "ReentrantCallError",
    "Reranker",
    "Scheduler",
    "SearchResult",
    "ServerError",
    "SparseEncoder",
    "UnknownOptionError",
    "__version__",
    "calibration_ranges",
    "quantize_embeddings",
    "search",
]


# Names that few need, and the modules that are imported with them.
_MODULES = {
    "AsyncClient": "client",
    "Client": "client",
    "LanguagePack": "languages.language_pack",
    "MultiVectorEncoder": "late_interaction.encoder",
    "Predictor": "heads.predictor",
    "Reranker": "reranking.reranker",
    "Scheduler": "scheduling",
    "SparseEncoder": "sparse.sparse_encoder",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from mirror_rt.version import __version__  # slow to find

        return __version__
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__  # the names that are imported on first use are missing from the namespace
