"""Dense modules: linear layers after the pooling, in the file format of sentence-transformers."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mirror_rt.bundle.declared_keys import DeclaredFile
from mirror_rt.errors import ModelError
from mirror_rt.io.atomic import write_json

logger = logging.getLogger("mirror_train")


class Dense(nn.Module):
    """A linear layer with an activation; its parameters are named as in sentence-transformers.

    With `residual`, the input is added to the output, through a linear layer of its own where the
    sizes differ.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        activation: nn.Module,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = activation
        self.use_residual = residual
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    @classmethod
    def selecting(cls, in_features: int, out_features: int) -> Dense:
        """Return the layer that keeps the first `out_features` dimensions."""
        layer = cls(in_features, out_features, bias=False, activation=nn.Identity())
        layer.linear.weight.data = torch.eye(out_features, in_features)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors [B, in_features] to [B, out_features]."""
        y = cast(Tensor, self.activation_function(self.linear(x)))
        if not self.use_residual:
            return y
        return y + (self.residual(x) if hasattr(self, "residual") else x)


def save_dense(layer: Dense, folder: Path) -> None:
    """Write a Dense module into the empty `folder`, so that sentence-transformers loads it."""
    activation = type(layer.activation_function)
    config = {
        "in_features": layer.linear.in_features,
        "out_features": layer.linear.out_features,
        "bias": layer.linear.bias is not None,
        "activation_function": f"{activation.__module__}.{activation.__qualname__}",
    }
    if layer.use_residual:
        config["use_residual"] = True  # unknown before version 5.7
    write_json(folder / "config.json", config)
    save_weights(layer, folder)


def load_dense(declared: DeclaredFile) -> Dense:
    """Load a Dense module of sentence-transformers, with safetensors or pickled weights.

    Its configuration is given, and the weights are beside its file.
    """
    path, config = declared.path, declared.values
    folder = path.parent
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise ModelError(f"{path}: a Dense module of {config[key]!r} is not supported")
    try:
        with torch.device("meta"):  # takes no memory, however large the stated sizes are
            layer = Dense(
                int(config["in_features"]),
                int(config["out_features"]),
                bias=bool(config.get("bias", True)),
                activation=_activation(path, config.get("activation_function", "torch.nn.Tanh")),
                residual=bool(config.get("use_residual")),
            )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{folder} is not a Dense module: {reason}") from error
    load_weights(layer, read_weights(folder), folder, noun="Dense")
    return layer.float().requires_grad_(False).eval()


def save_weights(layer: nn.Module, folder: Path) -> None:
    """Write the parameters and buffers of a layer as `folder`/model.safetensors."""
    weights = {name: weight.contiguous() for name, weight in layer.state_dict().items()}
    try:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # safetensors' error for a full disk
        raise OSError(f"cannot write {folder}: {error}") from error


def load_weights(layer: nn.Module, weights: dict[str, Tensor], folder: Path, *, noun: str) -> None:
    """Replace the weights of a layer by the tensors that `read_weights` returned."""
    try:
        layer.load_state_dict(weights, assign=True)
    except (TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{folder} is not a {noun} module: {reason}") from error
    check_finite(layer, folder)


def check_finite(layer: nn.Module, folder: Path) -> None:
    """Raise ModelError for a weight that holds NaN or an infinity."""
    for name, weight in layer.named_parameters():
        if not weight.numel():
            continue
        low, high = torch.aminmax(weight.detach())  # both are NaN where any weight is
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ModelError(f"{folder}: the weight {name} holds NaN or an infinity")


def _activation(path: Path, name: str) -> nn.Module:
    """Return a torch.nn activation by its full name; any other would run code from the folder."""
    made = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise ModelError(f"{path}: the activation {name!r} is not one of torch.nn")
    return made()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the file that `save_weights` wrote, or a pickle of tensors in pytorch_model.bin."""
    if (safe := folder / "model.safetensors").is_file():
        try:
            return load_file(safe)
        except Exception as error:  # safetensors' own class, or OSError
            raise ModelError(f"{safe} cannot be read: {error}") from error
    pickled = folder / "pytorch_model.bin"
    if not pickled.is_file():
        raise ModelError(f"{folder} has no weights: expected model.safetensors")
    logger.warning("%s holds pickled weights: only tensors are read from it", pickled)
    try:
        refuse_compressed(pickled)
        return cast(dict[str, Tensor], torch.load(pickled, map_location="cpu", weights_only=True))
    except Exception as error:  # pickle, zipfile and torch each have their own
        raise ModelError(
            f"{pickled} cannot be read: {' '.join(str(error).split()[:30])}"
        ) from error


def refuse_compressed(path: Path) -> None:
    """Raise ValueError for a compressed file of torch.save, which could take all memory."""
    if not zipfile.is_zipfile(path):
        return  # the older format, which has no compression
    try:
        with zipfile.ZipFile(path) as archive:
            held = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if held > path.stat().st_size:
        raise ValueError(f"it is compressed: {held:,} bytes in a file of {path.stat().st_size:,}")
