"""Turn windows of texts into vectors, in order, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from mirror_rt.bulk.plan import window_characters
from mirror_rt.bulk.progress import RunCounter
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.identity import digest_of
from mirror_rt.child_process import end_with_parent
from mirror_rt.cpus import available_cpus
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import DataError, ProcessGroupError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions
from mirror_rt.pipeline.results import EncodedTexts
from mirror_rt.system import interrupts_held
from mirror_rt.tokens.windows import TextWindow

# Encodes one window after the other, tokenising the next one while one runs.
_EncodeWindows = Callable[[Iterable[TextWindow]], Iterator[EncodedTexts]]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Say how a process loads the bundle in `folder` (with threads of its own), and encodes.

    Each process that loads it finds the files whose digest is `digest`, or raises a DataError. A
    window of texts for it has at most `characters` characters.
    """

    folder: Path
    load: LoadOptions
    options: EncodeOptions
    digest: str
    characters: int

    @classmethod
    def of(
        cls, described: ModelDescription, load: LoadOptions, options: EncodeOptions
    ) -> EncoderSpec:
        """Say it for a bundle as it is now."""
        digest = digest_of(described.folder, verified=load.verify)
        return cls(described.folder, load, options, digest, window_characters(described, load))

    def open(self, counter: RunCounter) -> _EncodeWindows:
        """Load the encoder, whose texts and tokens are counted; return its encoding function."""
        pipeline = load_unchanged(self.folder, self._load, Encoder.close).pipeline
        plan = pipeline.plan(**cast(EncodeKeywords, asdict(self.options)))

        return partial(
            pipeline.encode_windows, plan=plan, count=counter.add_texts, on_run=counter.add_batch
        )

    def _load(self) -> Encoder:
        if digest_of(self.folder, verified=self.load.verify) != self.digest:
            raise DataError(f"{self.folder} was replaced since the job was begun: start it again")
        return Encoder._load_whole(self.folder, self.load)


def encode_windows(
    spec: EncoderSpec,
    stream: Iterable[TextWindow],
    *,
    processes: int,
    report_counter: Callable[[RunCounter], None],
) -> Generator[EncodedTexts, None, None]:
    """Yield the vectors of one window after the other.

    With several processes, that many windows and one more are held at a time. `report_counter` is
    called before the first window with the counter of the work. An InvalidTextError has the numbers
    of texts in the input; a ProcessGroupError says that a process was killed or ran out of memory.
    """
    if processes == 1:
        counter = RunCounter()
        encode = spec.open(counter)
        report_counter(counter)
        yield from encode(stream)
    else:
        share = max(1, available_cpus() // processes)
        load = replace(spec.load, threads=spec.load.threads or share)
        shared = replace(spec, load=load)
        yield from _encode_in_processes(shared, stream, processes, report_counter)


def _encode_in_processes(
    spec: EncoderSpec,
    stream: Iterable[TextWindow],
    processes: int,
    report_counter: Callable[[RunCounter], None],
) -> Generator[EncodedTexts, None, None]:
    context = multiprocessing.get_context("spawn")
    totals = context.Array("q", 3)
    report_counter(RunCounter(totals))
    alive, held_here = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        processes, context, initializer=_start_worker, initargs=(spec, totals, alive)
    )
    try:
        pending: deque[Future[EncodedTexts]] = deque()
        rest = iter(stream)
        while True:
            for window in islice(rest, processes + 1 - len(pending)):
                with interrupts_held():  # submitting starts processes
                    pending.append(pool.submit(_encode_in_worker, window))
            if not pending:
                break
            yield pending.popleft().result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise ProcessGroupError(
            f"one of the {processes} processes ended: killed, or out of memory? Fewer "
            "--processes need less"
        ) from error
    finally:
        held_here.close()  # ends the processes, whatever they are doing
        pool.shutdown(wait=True, cancel_futures=True)


_worker_encoder: Callable[[], _EncodeWindows]  # set by `_start_worker`; its first call loads


def _start_worker(spec: EncoderSpec, totals: Any, alive: Any) -> None:
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent process handles Ctrl-C
    end_with_parent(lambda: alive.poll(None))  # its other end is closed, even by kill -9
    _worker_encoder = cache(lambda: spec.open(RunCounter(totals)))


def _encode_in_worker(window: TextWindow) -> EncodedTexts:
    (encoded,) = _worker_encoder()([window])
    return encoded
