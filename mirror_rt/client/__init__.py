"""Clients of `mirror-rt serve`: `Client`, and `AsyncClient` for asyncio.

>>> from mirror_rt import Client
>>> with Client("http://localhost:8080") as client:
...     client.encode(["first text", "second text"]).shape
(2, 384)
"""

from mirror_rt.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
