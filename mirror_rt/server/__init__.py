"""An HTTP server that speaks the protocols of OpenAI, text-embeddings-inference and KServe.

>>> from mirror_rt.server import ServerConfig, create_app
>>> app = create_app("bundle", ServerConfig(max_items=64))  # an ASGI application
"""

from typing import TYPE_CHECKING

from mirror_rt.lazy_exports import lazy_exports
from mirror_rt.server.config import ListenConfig, ServerConfig

if TYPE_CHECKING:
    from mirror_rt.server.http.app import create_app
    from mirror_rt.server.models.served_models import Models, NamedEncoder
    from mirror_rt.server.models.sources import load_models
    from mirror_rt.server.process.serving import check, serve

__all__ = ["ListenConfig", "Models", "NamedEncoder", "ServerConfig", "check", "create_app",
           "load_models", "serve"]  # fmt: skip

# The rest is imported when it is used: the command line needs the configuration alone.
__getattr__ = lazy_exports(
    __name__,
    __all__,
    ("models.served_models", "models.sources", "http.app", "process.serving"),
    extra="serve",
)
