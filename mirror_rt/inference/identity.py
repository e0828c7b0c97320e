"""Name all that decides the vectors of a loaded model, but for texts and options of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirror_rt.inference.engines import engine_version
from mirror_rt.inference.load_options import LoadOptions

# Options that change no vector: where the bundle is from (its digest counts anyway), whether it is
# checked, which threads or cards share the work, and where vectors are kept.
_NO_CHANGE_OF_VECTORS = frozenset({"revision", "offline", "verify", "allow_fallback", "threads",
                                   "spinning", "devices", "cache", "cache_bytes"})  # fmt: skip


def model_identity(
    digest: str, load: LoadOptions, providers: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Return everything that determines the vector of a row of tokens: a JSON value for each name.

    An option counts unless it is known to change no vector, so a new option counts by default.

    Args:
        digest: that of the files (see `digest_of`).
        load: the options that the model is loaded with.
        providers: the execution providers that run it, the preferred one first.
        **more: values in the place of those of `load`, or beside them.
    """
    from mirror_rt.version import __version__

    values = {n: value for n, value in load.keywords().items() if n not in _NO_CHANGE_OF_VECTORS}
    return {
        **values,
        "provider_options": {name: str(value) for name, value in load.provider_options.items()},
        "providers": list(providers),
        **engine_version(providers[0]),
        "bundle": digest,
        "mirror_rt": __version__,
        **more,
    }
