"""Save and push a model as the original classes do: its folder, with the settings of the object."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mirror_rt.bundle.file_records import FileRecord
from mirror_rt.bundle.hub import Repository, hub_library
from mirror_rt.bundle.manifest import Layout
from mirror_rt.errors import ConfigError, HubError
from mirror_rt.io.atomic import new_folder, sha256, write_json

if TYPE_CHECKING:
    from mirror_rt.encoding.encoder import Encoder
    from mirror_rt.late_interaction.encoder import MultiVectorEncoder
    from mirror_rt.reranking.reranker import Reranker
    from mirror_rt.sparse.sparse_encoder import SparseEncoder

_SETTINGS = "config_sentence_transformers.json"


class Saving:
    """The methods that write a model: weights, graphs and card are those of its folder."""

    _loaded: Encoder | MultiVectorEncoder | Reranker | SparseEncoder
    prompts: Any
    default_prompt_name: Any

    def save(
        self, path: str, model_name: str | None = None, create_model_card: bool = True,
        train_datasets: list[str] | None = None, safe_serialization: bool = True,
    ) -> None:  # fmt: skip
        """Copy the model's folder to `path`, new or empty, with the settings of this object.

        Only `path` has an effect: the card and the form of the weights are those of the folder.

        Raises:
            ConfigError: a setting has no place in the folder.
            OutputExistsError: `path` is there, and not empty.
        """
        limit = self._loaded.manifest.max_length
        if self._loaded.max_length != limit:
            raise ConfigError(
                f"max_seq_length was changed from {limit}, which the folder keeps: set it after "
                "loading, or export the model with `mirror-rt export --max-length`"
            )
        _copy(self._loaded.folder, Path(path), self._saved_settings())

    save_pretrained = save

    def push_to_hub(
        self, repo_id: str, token: str | None = None, private: bool | None = None,
        safe_serialization: bool = True, commit_message: str | None = None,
        local_model_path: str | None = None, exist_ok: bool = False,
        replace_model_card: bool = False, train_datasets: list[str] | None = None,
        revision: str | None = None, create_pr: bool = False,
    ) -> str:  # fmt: skip
        """Send the result of `save`, or another folder, to a hub; return the commit's address.

        Raises:
            HubError: the hub refuses it, or is not reached.
        """
        hub = hub_library(f"pushing to {repo_id}")
        repository = Repository(repo_id, revision, error=HubError)
        with repository.errors(), TemporaryDirectory() as made:
            if local_model_path is None:
                self.save(made)  # first, so that a failure leaves no repository behind
            api = hub.HfApi(token=token)
            found = api.create_repo(
                repo_id=repo_id, private=private, exist_ok=exist_ok or create_pr
            )
            if revision is not None:
                api.create_branch(repo_id=found.repo_id, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=found.repo_id, folder_path=local_model_path or made, revision=revision,
                commit_message=commit_message or f"Add new {type(self).__name__} model",
                create_pr=create_pr,
            )  # fmt: skip
        return str(commit.pr_url if create_pr else commit.commit_url)

    def _saved_settings(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "default_prompt_name": self.default_prompt_name}


def _copy(source: Path, target: Path, settings: dict[str, Any]) -> None:
    """Copy a folder without its hidden files, and declare settings in the copy."""
    with new_folder(target, overwrite=False) as folder:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        declared, manifest = folder / _SETTINGS, folder / Layout.manifest
        write_json(declared, (_read(declared) if declared.is_file() else {}) | settings)
        if not manifest.is_file():
            return
        values = _read(manifest)
        values |= {name: settings[name] for name in ("prompts", "default_prompt_name")}
        if values["scores"]:
            values["scores"]["activation"] = settings["activation_fn"].rpartition(".")[2].lower()
        if values["words"]:
            values["words"]["active"] = settings["max_active_dims"]
        if _SETTINGS in values["files"]:
            record = FileRecord(declared.stat().st_size, sha256(declared))
            values["files"][_SETTINGS] = asdict(record)
        write_json(manifest, values)


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
