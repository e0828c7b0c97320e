"""A run of any system: its base model, its checkpoints, its training, and the folder it writes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from mirror_rt.bundle.json_document import made_now
from mirror_rt.bundle.manifest import Layout, Manifest, record_files
from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.evaluation import ScoredPairs, evaluate_similarity, read_scored_pairs
from mirror_rt.io.atomic import check_free, check_space, new_folder, write_json
from mirror_rt.progress import progress_bar
from mirror_train.compute.precision import Precision, resolve_precision
from mirror_train.compute.processes import Processes, joined_processes
from mirror_train.model.license import describe_base
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained, quiet_transformers
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.training.checkpoint import Checkpoint, CheckpointStore
from mirror_train.training.loop import Selection, Trainer, TrainingStats, encoder_forward
from mirror_train.training.optimizer import adamw
from mirror_train.training.run_config import TrainConfig
from mirror_train.training.steps import Steps


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The result of a run.

    Attributes:
        out: the folder written.
        manifest: the content of its mirror.json.
        stats: losses, movement, wall time and padding.
        also: the report of a further model that the run has written, as Trans-Encoder does.
    """

    out: Path
    manifest: Manifest
    stats: TrainingStats
    also: TuneReport | None = None


@dataclass(slots=True)
class Run:
    """A run that has begun, alone or in one of several processes.

    A system checks its data, and calls `load`, `start`, `train` and `write` in this order.
    """

    config: TrainConfig
    processes: Processes
    precision: Precision  # precision of the encoder
    base: Pretrained = field(init=False)  # the base model, once it is loaded
    _pairs: ScoredPairs | None = None
    _selection: Selection | None = field(init=False, default=None)
    _weights: list[str] = field(init=False)
    _store: CheckpointStore = field(init=False)
    _checkpoint: Checkpoint | None = field(init=False)

    @property
    def device(self) -> torch.device:
        """The device on which this process computes."""
        return self.processes.device

    @property
    def shows_bars(self) -> bool:
        """Tell whether this process shows progress: the first does, by default on a terminal."""
        wanted = self.config.show_progress_bar
        return self.processes.rank == 0 and (sys.stderr.isatty() if wanted is None else wanted)

    def load(self, *, dropout: float | None, given: Pretrained | None = None) -> Pretrained:
        """Load the base model, or take the one given; hash its weights before they are trained."""
        self.base = given or self.processes.first_then_all(
            lambda: load_pretrained(
                self.config.model, dropout=dropout, **self.config.load_options()
            )
        )
        self._weights = self.base.weights_sha256()
        return self.base

    def start(
        self,
        data: Any,
        recipe: Mapping[str, Any],
        *,
        copies: int = 1,
        selects: bool = False,
        **more: Any,
    ) -> None:
        """Find the checkpoint to go on from, and check that the disk can hold the run's files.

        `data` (hashes), `recipe` and `more` decide the result besides the base model and the
        settings of the run: where one of them differs, the checkpoint is refused. The run writes
        the weights `copies` times, besides checkpoints, which have one more set where the best are
        kept: it `selects` by a measure of its own, or by `TrainConfig.select`.
        """
        if selects or self.config.selects:
            more |= {"select": self.config.selects, "evaluate_every": self.config.evaluate_every}
        identity = {"model": self._weights, "data": data, "seed": self.config.seed,
                    "precision": self.precision, "processes": self.processes.count,
                    **recipe, **more}  # fmt: skip
        self._store = CheckpointStore(self.config.out, identity)
        self._checkpoint = self.processes.first_then_all(self._starting_point)
        step = self._checkpoint.step if self._checkpoint else 0
        self.processes.check_alike(
            identity | {"the step of the checkpoint, which all nodes must see": step}
        )
        if self.config.checkpoint_every:
            # A checkpoint takes at most three times the memory of the weights: it has the state of
            # AdamW. The next is written before the last one, which a resumed run has, is removed.
            kept = 4 if "select" in more else 3
            copies = max(copies, kept if self._checkpoint else 2 * kept)
        weights = sum(p.numel() * p.element_size() for p in self.base.model.parameters())
        self.processes.in_first(lambda: check_space(self.config.out, copies * weights))

    def encoder(self, head: Head, base: Pretrained | None = None, **options: Any) -> TorchEncoder:
        """Return the current weights of the run's model, or of `base`, as an encoder."""
        return TorchEncoder(base or self.base, head=head, device=self.device, **options)

    def trainer(
        self,
        steps: Steps,
        head: Head,
        modules: Mapping[str, nn.Module],
        recipe: Any,
        *,
        base: Pretrained | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **more: Any,
    ) -> Trainer:
        """Return the trainer of some modules, by AdamW unless an optimiser is given.

        `base` is the model below the head, if it is not that of the run; `more` are further fields
        of `Trainer`.
        """
        trained = nn.ModuleDict(modules)
        return Trainer(
            steps=steps,
            forward=encoder_forward(base or self.base, head, self.device, self.precision),
            modules=trained,
            optimizer=optimizer or adamw(trained.parameters(), recipe),
            seed=self.config.seed,
            processes=self.processes,
            precision=self.precision,
            warm_up=recipe.warm_up,
            decay=recipe.decay,
            **more,
        )

    def train(
        self, trainer: Trainer, what: str, encoder: EmbeddingModel | Callable[[ScoredPairs], float]
    ) -> None:
        """Train to the end under a bar, labelled `what`, which counts the steps.

        `encoder` gives the vectors of the current weights, or their rho on pairs, by which
        `TrainConfig.select` chooses those to end with, in the place of the trainer's own selection.
        """
        shown = ""
        if (pairs := self._pairs) is not None:

            def rho() -> tuple[float, None]:
                nonlocal shown
                score = encoder if callable(encoder) else partial(evaluate_similarity, encoder)
                found = score(pairs)
                shown = f", rho={found:.4f}"
                return found, None

            trainer.selection = self._selection = Selection(rho, self.config.evaluate_every)
        done = self._checkpoint.step if self._checkpoint else 0
        bar = progress_bar(
            trainer.steps.total, self.shows_bars, unit="step", desc=what, initial=done
        )

        def on_step(loss: float) -> None:
            bar.set_postfix_str(f"loss={loss:.4f}{shown}")
            bar.update(1)

        try:
            trainer.run(
                self._store,
                checkpoint_every=self.config.checkpoint_every,
                resume_from=self._checkpoint,
                on_step=on_step,
            )
        finally:
            bar.close()

    def write(
        self,
        head: Head,
        stats: TrainingStats,
        *,
        recipe: dict[str, Any],
        data: dict[str, Any],
        training: dict[str, Any],
        level: str | None,
        language: str | None = None,
        pad_to: int | None = None,
        prompts: Mapping[str, str] = MappingProxyType({}),
        tuned: Pretrained | None = None,
        also: Callable[[Path], None] = lambda folder: None,
    ) -> TuneReport:
        """Write the model and its mirror.json as `out`, whole or not at all; forget checkpoints.

        The head is a pooling that can be tuned, and the layers after it. `recipe` has every
        hyper-parameter, and `training` further facts to record, beside settings and `stats`.
        The model written is `tuned`, or the base model, where that was trained in place. `also`
        writes further files into the folder.
        """
        base = self.base
        manifest = Manifest(
            dimension=head.dimension(base.dimension),
            max_length=pad_to or base.max_length,
            pad_id=base.pad_id,
            pad_to=pad_to,
            pooling=head.pooling,
            matryoshka=list(recipe.get("matryoshka") or ()),
            mask_token=base.mask_token,
            prompts=dict(prompts),
            language=language,
            level=level,
            base_model=describe_base(base) | {"weights_sha256": self._weights},
            recipe=recipe,
            data=data,
            training=self._recorded(stats) | training,
            **made_now(),
            format="mirror_rt encoder",
        )

        def write() -> Manifest:
            written = self._write_folder(tuned or base, head, manifest, also)
            self._store.remove()
            return written

        return TuneReport(self.config.out, self.processes.in_first(write), stats)

    def _starting_point(self) -> Checkpoint | None:
        if self.config.resume:
            return self._store.load()
        if self.config.overwrite:
            self._store.remove()
        self._store.check_unused()
        return None

    def _recorded(self, stats: TrainingStats) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        if self._selection is not None:
            best = self._selection.best
            chosen = {
                "select": self.config.selects,
                "best_step": best["step"],
                "spearman": best["score"],
            }
        return chosen | {
            "seed": self.config.seed,
            "precision": self.precision,
            "device": self.device.type,
            "processes": self.processes.count,
            "steps": len(stats.losses),
            "movement": float(f"{stats.movement:.4g}"),
            "loss_first": stats.losses[0],
            "loss_last": stats.losses[-1],
            "seconds": round(stats.seconds, 2),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def _write_folder(
        self, model: Pretrained, head: Head, manifest: Manifest, also: Callable[[Path], None]
    ) -> Manifest:
        with new_folder(self.config.out, overwrite=self.config.overwrite) as folder:
            try:
                with quiet_transformers():
                    model.model.save_pretrained(folder)
            except SafetensorError as error:  # safetensors' error for a full disk
                raise OSError(f"cannot write {self.config.out}: {error}") from error
            save_tokenizer(model.hf_tokenizer, folder, max_length=manifest.max_length)
            if head.gives_text_vectors:
                normalized = Head(head.poolings, head.layers).cpu()
                write_modules(folder, normalized, manifest, hidden_size=self.base.dimension)
            also(folder)
            manifest = dataclasses.replace(manifest, files=record_files(folder))
            write_json(folder / Layout.manifest, manifest.to_dict())
        return manifest


@contextmanager
def begun(config: TrainConfig, precision: Precision) -> Iterator[Run]:
    """Begin a run in this process and the others that `torchrun` has started, if any.

    Raises OutputExistsError before any work where `config.out` exists and may not be overwritten.
    """
    with joined_processes(config.device) as processes:
        processes.in_first(lambda: check_free(config.out, overwrite=config.overwrite))
        pairs = None if config.select is None else read_scored_pairs(config.select)
        yield Run(config, processes, resolve_precision(precision, processes.device), _pairs=pairs)
