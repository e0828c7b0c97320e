"""Say which code decides the result of a run: the product's files, and those of a row's own."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mirror_rt
import mirror_train
from mirror_rt.io.atomic import sha256

# Folders of the packages from which nothing comes that trains or measures a model.
_ELSEWHERE = {"adapters", "bulk", "cli", "client", "compat", "diagnostics", "experiments",
              "reranking", "server", "triton", "__pycache__"}  # fmt: skip
_CODE = (".py", ".so", ".pyd", ".toml")
_ROOTS = tuple(Path(str(one.__file__)).parent for one in (mirror_rt, mirror_train))


def product_code() -> dict[str, str]:
    """Return the version, and a digest of the files that train and measure models."""
    digest = hashlib.sha256()
    for root in _ROOTS:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            if path.suffix in _CODE and name.parts[0] not in _ELSEWHERE:
                digest.update(f"{name.as_posix()} {sha256(path)}\n".encode())
    return {"mirror_rt": mirror_rt.__version__, "files": digest.hexdigest()}


def own_code(train: Any) -> list[str]:
    """Return the digests of the files of the functions that train a row, beside `product_code`."""
    return sorted({sha256(path) for path in _files(train)})


def _files(value: Any) -> Iterator[Path]:
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _files(part)
    elif isinstance(value, types.FunctionType | types.MethodType | type):
        try:
            path = Path(str(inspect.getsourcefile(value))).resolve()
        except TypeError:  # a class of C
            return
        inside = [root for root in _ROOTS if path.is_relative_to(root)]
        known = inside and path.relative_to(inside[0]).parts[0] not in _ELSEWHERE
        if path.is_file() and not known:
            yield path
