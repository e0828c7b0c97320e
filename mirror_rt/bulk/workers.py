"""Turn windows of texts into vectors, in order, in this process or in several."""

from __future__ import annotations

import functools
import multiprocessing
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, cast

from mirror_rt.bulk.records import Window
from mirror_rt.bulk.saved_batches import SavedBatches
from mirror_rt.bundle.onnx_files import read_manifest
from mirror_rt.child_process import end_with_parent
from mirror_rt.cpus import available_cpus
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ProcessGroupError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.tokens.windows import TextWindow
from mirror_rt.vectors.quantization import Embeddings


class RunCounter:
    """Count texts, tokens and padded tokens that ran, for a bar that moves while a window runs.

    `shared` are three integers to which other processes add as well; None for one process.
    """

    def __init__(self, shared: Any = None) -> None:
        self._values = [0, 0, 0] if shared is None else shared
        self._lock = threading.Lock() if shared is None else shared.get_lock()

    def add(self, texts: int, tokens: int, padded: int) -> None:
        """Count a batch."""
        with self._lock:
            for i, n in enumerate((texts, tokens, padded)):
                self._values[i] += n

    def add_batch(self, batch: PaddedBatch) -> None:
        """Count a batch of token ids."""
        rows, mask = len(batch.input_ids), batch.attention_mask
        self.add(rows, int(mask.sum()), mask.size)

    def read(self) -> tuple[int, int, int]:
        """Return the numbers of texts, of tokens, and of tokens including padding."""
        with self._lock:
            texts, tokens, padded = self._values
        return texts, tokens, padded


class WindowVectors(NamedTuple):
    """The vectors [n, D] of a window."""

    window: Window
    vectors: Embeddings


# Encodes one window after the other, tokenising the next one while one runs.
_EncodeWindows = Callable[[Iterable[Window]], Iterator[WindowVectors]]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Say how a process loads the bundle in `folder` (with threads of its own), and encodes.

    It saves the batches that it has finished in the folder `save_in`, if one is given.
    """

    folder: Path
    load: LoadOptions
    options: EncodeOptions
    save_in: Path | None = None

    def open(self, counter: RunCounter) -> _EncodeWindows:
        """Load the encoder, whose texts and tokens are counted; return what encodes with it.

        That raises InvalidTextError for texts that cannot be encoded, with their numbers in the
        input.
        """
        manifest = read_manifest(self.folder, pooling=self.load.pooling)
        pipeline = Encoder(self.folder, manifest, self.load).pipeline
        plan = pipeline.plan(**cast(EncodeKeywords, asdict(self.options)))
        saved = SavedBatches(self.save_in) if self.save_in else None

        def encode(stream: Iterable[Window]) -> Iterator[WindowVectors]:
            drawn: deque[Window] = deque()

            def draw() -> Iterator[TextWindow]:
                for window in stream:
                    drawn.append(window)
                    yield TextWindow.check(window.start, window.texts)

            found = pipeline.encode_windows(draw(), plan, on_run=counter.add_batch, saved=saved)
            for encoded in found:
                yield WindowVectors(drawn.popleft(), encoded.embeddings)

        return encode


def encode_windows(
    spec: EncoderSpec,
    stream: Iterable[Window],
    *,
    processes: int,
    report_counter: Callable[[RunCounter], None],
) -> Generator[WindowVectors, None, None]:
    """Encode one window after the other; with several processes, that many and one more at a time.

    `report_counter` is called before the first window with the counter of the work.

    Raises:
        InvalidTextError: texts cannot be encoded; it names them by their number in the input.
        MirrorError: the encoder cannot be loaded, or fails.
        ProcessGroupError: a process was killed or ran out of memory.
    """
    if processes == 1:
        counter = RunCounter()
        report_counter(counter)
        yield from spec.open(counter)(stream)
    else:
        share = max(1, available_cpus() // processes)
        load = replace(spec.load, threads=spec.load.threads or share)
        shared = replace(spec, load=load)
        yield from _encode_in_processes(shared, stream, processes, report_counter)


def _encode_in_processes(
    spec: EncoderSpec,
    stream: Iterable[Window],
    processes: int,
    report_counter: Callable[[RunCounter], None],
) -> Generator[WindowVectors, None, None]:
    context = multiprocessing.get_context("spawn")
    totals = context.Array("q", 3)
    report_counter(RunCounter(totals))
    alive, held_here = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        processes, context, initializer=_start_worker, initargs=(spec, totals, alive)
    )
    try:
        pending: deque[tuple[Window, Future[Embeddings]]] = deque()
        rest = iter(stream)
        while True:
            for window in islice(rest, processes + 1 - len(pending)):
                with _interrupts_held():  # submitting starts processes
                    pending.append((window, pool.submit(_encode_in_worker, window)))
            if not pending:
                break
            window, future = pending.popleft()
            yield WindowVectors(window, future.result())
        pool.shutdown()
    except BrokenProcessPool as error:
        raise ProcessGroupError(
            f"one of the {processes} processes ended: killed, or out of memory? Fewer "
            "--processes need less"
        ) from error
    finally:
        held_here.close()  # ends the processes, whatever they are doing
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C while processes start: it would end them before they can ignore it."""
    if sys.platform == "win32":  # signals cannot be blocked there
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker_encoder: Callable[[], _EncodeWindows]  # set by `_start_worker`; its first call loads


def _start_worker(spec: EncoderSpec, totals: Any, alive: Connection) -> None:
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent process handles Ctrl-C
    end_with_parent(lambda: alive.poll(None))  # its other end is closed, even by kill -9
    _worker_encoder = functools.cache(lambda: spec.open(RunCounter(totals)))


def _encode_in_worker(window: Window) -> Embeddings:
    (result,) = _worker_encoder()([window])
    return result.vectors
