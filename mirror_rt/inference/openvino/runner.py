"""Open the fp32 graph of a bundle in OpenVINO, and run it."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.file_records import verifying
from mirror_rt.bundle.identity import graph_digest
from mirror_rt.bundle.manifest import Manifest, Precision, Variant
from mirror_rt.errors import (
    BundleError,
    ClosedError,
    ConfigError,
    MissingDependencyError,
    ProviderError,
    Setting,
)
from mirror_rt.inference.forks import forget_after_fork, leak
from mirror_rt.inference.graph_files import check_graph, loadable
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.openvino.compiling import choose_precision, compile_graph, import_openvino
from mirror_rt.inference.providers import OPENVINO
from mirror_rt.tokens.joining import graph_inputs
from mirror_rt.tokens.padding import PaddedBatch

logger = logging.getLogger("mirror_rt")

# As many infer requests wait for the next run as runs are in flight at once; each keeps the outputs
# of its last run.
_KEEP_REQUESTS = 2
# After a run of more padded tokens than this (twice the default budget) the memory of the values
# between the operators is given back.
_KEEP_TOKENS = 4096


class OpenVinoRunner(LoadedGraph):
    """A graph in OpenVINO; safe to use from several threads, and in forked processes.

    Args:
        graph: path of the graph's file.
        precision: of the products, `fp32` or `bf16`; vectors are float32 in both.
        version: a string that differs whenever the weights differ, for the cache of graphs.
        options: say how many threads to use.
    """

    def __init__(
        self, graph: Path, precision: Precision, version: str, options: LoadOptions
    ) -> None:
        self.graph = graph
        self.providers: list[str] = [OPENVINO]
        self.devices: list[int | None] = [None]
        self._how = (graph, precision, version, options)
        self._opening = threading.Lock()
        self._closed = False
        compiled = compile_graph(*self._how)
        # The compiled model, and its requests that wait for a run; None in a forked process until
        # the first run.
        self._model: tuple[Any, list[Any]] | None = (compiled, [])
        self.inputs = {port.any_name: port.element_type.get_type_name() for port in compiled.inputs}
        self.outputs = [port.any_name for port in compiled.outputs]
        # The length of each output's vectors; None where the graph leaves it open.
        self.widths = {port.any_name: _width(port.partial_shape) for port in compiled.outputs}
        forget_after_fork(self)

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D], or [rows, length, D] for the vectors of its tokens."""
        compiled, idle = self._open()
        feeds = graph_inputs(batch, self.inputs)
        try:
            try:
                request = idle.pop()
            except IndexError:
                request = compiled.create_infer_request()
            request.infer(feeds, share_inputs=True, share_outputs=True)
            found = np.array(request.get_tensor(output).data, dtype=np.float32)
            if batch.input_ids.size > _KEEP_TOKENS:
                compiled.release_memory()  # and the request, which keeps its outputs
            elif len(idle) < _KEEP_REQUESTS:
                idle.append(request)
        except RuntimeError as error:
            rows, length = batch.input_ids.shape
            why = " ".join(str(error).split())
            raise BundleError(
                f"{self.graph} failed on {rows} texts of {length} tokens: {why}"
            ) from error
        return found

    def close(self) -> None:
        """Free the memory once no run is in flight; every later run raises ClosedError."""
        with self._opening:
            self._closed, self._model = True, None

    def forget(self) -> bool:
        """Drop the parent's model in a forked process, where its threads do not exist."""
        self._opening = threading.Lock()
        leak(self._model)
        self._model = None
        return True

    def _open(self) -> tuple[Any, list[Any]]:
        """Return the compiled model and its idle requests, made anew in a forked process."""
        if (model := self._model) is not None:
            return model
        with self._opening:
            if self._closed:
                raise ClosedError("this Encoder is closed: load it again with Encoder.load")
            if self._model is None:
                logger.info("this process was forked: loading %s again", self.graph)
                self._model = (compile_graph(*self._how), [])
            return self._model


def _width(shape: Any) -> int | None:
    last = shape[len(shape) - 1]
    return int(last.get_length()) if last.is_static else None


def resolve_openvino(options: LoadOptions) -> LoadOptions:
    """Return options for `providers="openvino"` with the variant chosen; others as they are.

    Where OpenVINO does not start and `allow_fallback` is given, they are for onnxruntime.
    """
    if options.providers != OPENVINO:
        return options
    try:
        return replace(options, variant=choose_precision(options.variant, import_openvino()))
    except (MissingDependencyError, ProviderError) as error:
        if not options.allow_fallback:
            raise
        logger.warning("%s; running under onnxruntime on the CPU", error)
        return replace(options, providers="cpu", provider_options={})


def open_openvino(
    folder: Path, manifest: Manifest, options: LoadOptions
) -> tuple[LoadedGraph, Variant]:
    """Open the fp32 graph of a bundle in OpenVINO, with the options of `resolve_openvino`."""
    for option in ("devices", "cuda_graphs"):
        if value := getattr(options, option):
            raise ConfigError(
                Setting(option, value), " is for NVIDIA cards, not for the provider openvino"
            )
    if options.spinning is not None:
        raise ConfigError(
            Setting("spinning", options.spinning),
            ": OpenVINO decides how its threads wait; leave it out",
        )
    precision = cast(Precision, options.variant)
    exact = _exact(folder, manifest)
    with verifying(folder, manifest.files_for([exact]) if options.verify else {}):
        path = loadable(folder, manifest, exact.file)
        runner = OpenVinoRunner(path, precision, graph_digest(folder / exact.file), options)
    try:
        check_graph(runner, manifest)
    except BundleError:
        runner.close()
        raise
    logger.info("%s runs under OpenVINO on the CPU in %s", path, precision)
    return runner, exact if precision == "fp32" else replace(
        exact, precision=precision, parity=None
    )


def _exact(folder: Path, manifest: Manifest) -> Variant:
    for variant in manifest.variants.values():
        if (variant.precision, variant.target) == ("fp32", "cpu"):
            return variant
    raise BundleError(
        f"{folder} has no fp32 graph for the CPU, which OpenVINO runs: export it with "
        "mirror-rt export --precision fp32 --target cpu"
    )
