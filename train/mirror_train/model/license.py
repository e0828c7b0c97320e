"""Read the licence of a base model from its folder, without ever guessing one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from huggingface_hub.repocard import metadata_load

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.ready_models import find_ready_model
from mirror_train.model.pretrained import Pretrained

logger = logging.getLogger("mirror_train")

# The identifier on the hub for the first line of a licence text.
_KNOWN = {"Apache License Version 2.0": "apache-2.0", "MIT License": "mit"}


def describe_base(base: Pretrained) -> dict[str, Any]:
    """Return the manifest's record of a base model: name, commit and licence."""
    return {
        "name": base.public_name,
        "revision": base.revision,
        "license": base_license(base.name, base.folder, base.description.manifest),
    }


def base_license(name: str, folder: Path, manifest: Manifest | None = None) -> str | None:
    """Return the identifier of a model's licence, such as `apache-2.0`; None if none is declared.

    It is that of the manifest, of the model card's front matter, or of the first line of LICENSE in
    `folder`. `name` is the path or hub name that the user gave.
    """
    recorded = None if manifest is None else manifest.base_model.get("license")
    found = recorded or _of_card(folder) or _of_text(folder)
    if found is None and not Path(name).exists() and (ready := find_ready_model(name)):
        return ready.license.lower()
    return found


def _of_card(folder: Path) -> str | None:
    path = folder / Layout.card
    if not path.is_file():
        return None
    try:
        found = (metadata_load(path) or {}).get("license")
    except Exception as error:  # noqa: BLE001 - yaml's own classes; a card is no reason to stop
        logger.warning(
            "%s: its front matter cannot be read, the licence stays unknown: %s", path, error
        )
        return None
    return found if isinstance(found, str) else None


def _of_text(folder: Path) -> str | None:
    for path in sorted(folder.glob("LICENSE*")):
        start = " ".join(path.read_text(encoding="utf-8", errors="replace")[:400].split())
        for text, identifier in _KNOWN.items():
            if start.startswith(text):
                return identifier
    return None
