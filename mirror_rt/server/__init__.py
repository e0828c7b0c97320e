"""The HTTP server: OpenAI's and text-embeddings-inference's protocols over one scheduler.

>>> from mirror_rt.server import ServerConfig, create_app
>>> app = create_app("bundle", ServerConfig(max_items=64))  # an ASGI application
"""

from mirror_rt.errors import require

for _module in ("starlette", "uvicorn", "msgspec", "orjson", "prometheus_client"):
    require(_module, extra="serve", purpose="serving a bundle")

from mirror_rt.server.config import ListenConfig, ServerConfig  # noqa: E402
from mirror_rt.server.http.app import create_app  # noqa: E402
from mirror_rt.server.models.served_models import Models, NamedEncoder, load_models  # noqa: E402

__all__ = ["ListenConfig", "Models", "NamedEncoder", "ServerConfig", "create_app", "load_models"]
