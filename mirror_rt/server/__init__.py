"""An HTTP server that speaks the protocols of OpenAI, text-embeddings-inference and KServe.

>>> from mirror_rt.server import ServerConfig, create_app
>>> app = create_app("bundle", ServerConfig(max_items=64))  # an ASGI application
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirror_rt.errors import require
from mirror_rt.server.config import ListenConfig, ServerConfig

if TYPE_CHECKING:
    from mirror_rt.server.http.app import create_app
    from mirror_rt.server.models.served_models import Models, NamedEncoder
    from mirror_rt.server.models.sources import load_models
    from mirror_rt.server.process.serving import check, serve

__all__ = ["ListenConfig", "Models", "NamedEncoder", "ServerConfig", "check", "create_app",
           "load_models", "serve"]  # fmt: skip

_MODULES = {
    "Models": "models.served_models",
    "NamedEncoder": "models.served_models",
    "check": "process.serving",
    "create_app": "http.app",
    "load_models": "models.sources",
    "serve": "process.serving",
}


def __getattr__(name: str) -> Any:
    """Import the rest only when it is used: the command line needs the configuration alone."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("starlette", "uvicorn", "msgspec", "orjson", "prometheus_client"):
        require(module, extra="serve", purpose="serving a bundle")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
