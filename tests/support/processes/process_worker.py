"""Run every check in one of the processes of test_processes.py, and write the results.

It is called as `python process_worker.py DEVICE MODEL PAIRS.txt FOLDER`, with torchrun's variables
in the environment. Without them it is the single process with which the others are compared.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mirror_rt import MirrorError
from mirror_train import TorchEncoder, TrainConfig, infonce, load_recipe, load_training_data, tune
from mirror_train.compute.processes import joined_processes
from mirror_train.data.batches import Batches
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.tasks import TaskData
from mirror_train.loss import multi_similarity
from mirror_train.model.pretrained import load_pretrained
from mirror_train.systems import (
    BurtRecipe,
    BurtTasks,
    CfRecipe,
    FlowRecipe,
    MultitaskData,
    MultitaskRecipe,
    train,
)
from mirror_train.training.checkpoint import CheckpointStore
from mirror_train.training.loop import Trainer
from mirror_train.training.mirror import mirror_trainer

INFONCE = {
    f"{variant}-{extra}": (variant, extra)
    for variant in ("ntxent", "decoupled", "one_way")
    for extra in ("plain", "hard", "ids", "hard-ids")
} | {f"multi_similarity-{extra}": ("multi_similarity", extra) for extra in ("plain", "ids")}


def check_infonce(processes):
    """Return this process's share of the loss and of the gradients of the joined batch."""
    results = {}
    for name, (variant, extra) in INFONCE.items():
        generator = torch.Generator().manual_seed(1)
        z = torch.randn(3, 8, 5, generator=generator, dtype=torch.float64)
        z[1] += 2 * z[0]
        ids = torch.tensor([0, 1, 2, 0, 3, 1, 0, 4])
        share = 8 // processes.count
        own = slice(processes.rank * share, (processes.rank + 1) * share)
        z1, z2, hard = (x[own].to(processes.device).requires_grad_() for x in z)
        options = {
            "group_ids": ids[own].to(processes.device) if "ids" in extra else None,
            "process_group": processes.group,
        }
        if variant == "multi_similarity":
            loss = multi_similarity(z1, z2, beta=5.0, **options)
        else:
            options |= {"hard_negatives": hard if "hard" in extra else None}
            loss = infonce(z1, z2, temperature=0.1, variant=variant, **options)
        loss.backward()
        gradients = [x.grad for x in (z1, z2, hard) if x.grad is not None]
        results[name] = (loss.detach(), torch.cat(gradients, dim=1))
    return results


def check_training(processes, model, data):
    """Return the first step's gradients and the final weights, in float64 without dropout."""
    results = {}
    for name, batch_size, loss_batch, precision in [
        ("whole", 40, 40, "fp32"),
        ("cached", 12, 80, "fp32"),
        ("scaled", 12, 80, "fp16"),
    ]:
        recipe = load_recipe("word").replace(
            pooling="cls",
            batch_size=batch_size,
            dropout=0.0,
            span_length=2,
            epochs=1,
            learning_rate=1e-3,
        )
        pretrained = load_pretrained(model, dropout=0.0)
        if precision == "fp32":
            pretrained.model.double()
        batches = Batches(data, recipe, loss_batch=loss_batch, seed=3, processes=processes,
                          mask_token=pretrained.mask_token)  # fmt: skip
        trainer = mirror_trainer(
            pretrained, batches, recipe, precision=precision, processes=processes
        )
        gradients = []

        def keep(optimizer, *_, gradients=gradients):
            parameters = optimizer.param_groups[0]["params"]
            gradients.append(torch.cat([p.grad.to_dense().flatten() for p in parameters]).cpu())

        hook = register_optimizer_step_pre_hook(keep)
        stats = trainer.run(CheckpointStore(Path("unused"), {}))
        hook.remove()
        weights = torch.cat([p.detach().flatten() for p in pretrained.model.parameters()])
        tokens = (stats.real_tokens, len(stats.losses))
        results[name] = (gradients[0], weights.cpu(), torch.tensor(stats.losses), tokens)
    return results


def check_systems(processes, model, data, folder):
    """Return the losses of short runs of the other systems, and the vectors of what they wrote."""
    rows = Examples(data.first[:40], data.second[:40], np.arange(40) % 3, ("a", "b", "c"), "rows")
    held = TaskData(rows.take(range(30)), rows.take(range(30, 40)))
    values = replace(rows, targets=np.arange(40) % 6 / 1.0, labels=())
    similarity = TaskData(values.take(range(30)), values.take(range(30, 40)))
    sentiment = TaskData(*(replace(part, second=None) for part in (held.train, held.dev)))
    tasks = MultitaskData({"sentiment": sentiment, "similarity": similarity})
    flow = FlowRecipe(steps=4, batch_size=8, learning_rate=1e-3)
    mirror = load_recipe("word").replace(dropout=0.0, batch_size=8, epochs=1, span_length=2)
    zero = dict.fromkeys(("sentiment", "paraphrase", "similarity"), 0.0)
    eight = dict.fromkeys(zero, 8)
    runs = {
        "flow": (data, {}, flow),
        # In bfloat16, which "auto" may be, a row depends on the rows that it is computed with.
        "cf": (data, {"precision": "fp32"}, CfRecipe(mirror=mirror, flow=flow, joint=True)),
        "burt": (BurtTasks(nli=rows), {"precision": "fp32"},
                 BurtRecipe(steps=4, batch_size=8, dropout=0.0)),
        "multitask": (tasks, {"precision": "fp32"},
                      MultitaskRecipe(steps=4, dropout=0.0, dropouts=zero, batch_sizes=eight)),
    }  # fmt: skip
    results = {}
    for name, (given, options, recipe) in runs.items():
        out = folder / f"{name}-{processes.count}"
        config = TrainConfig(out=out, model=str(model), recipe=recipe, **options)
        report = train(name, given, config)
        vectors = TorchEncoder.load(out, device="cpu").encode(data.first[:5])
        results[name] = (torch.tensor(report.stats.losses), torch.from_numpy(vectors))
    if processes.count > 1:
        odd = TrainConfig(out=folder / "odd", model=str(model), recipe=BurtRecipe(batch_size=3))
        results["odd"] = outcome(lambda: train("burt", BurtTasks(nli=rows), odd))
    return results


def outcome(work):
    """Return the error that `work` raises, as text."""
    try:
        work()
    except (MirrorError, ValueError, OSError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def check_errors(processes, config, data):
    """Return the error of this process when one of the processes, or all, cannot go on."""
    first, second = processes.rank == 0, processes.rank == 1
    z = torch.randn(4 + second, 3, device=processes.device)
    diverging = replace(config, recipe=config.recipe.replace(learning_rate=1e30))
    odd = replace(config, loss_batch=81)
    results = {
        "shapes": outcome(lambda: infonce(z, z, temperature=0.1, process_group=processes.group)),
        "seeds": outcome(lambda: tune(data, replace(config, seed=processes.rank))),
        "odd": outcome(lambda: tune(data, odd)),
        "diverging": outcome(lambda: tune(data, diverging)),
    }
    save = CheckpointStore.save
    if first:
        CheckpointStore.save = lambda *_: (_ for _ in ()).throw(OSError("the disk is full"))
    results["disk"] = outcome(lambda: tune(data, replace(config, checkpoint_every=2)))
    CheckpointStore.save = save
    gradient = torch.nn.Parameter(torch.zeros(3, device=processes.device))
    gradient.grad = torch.full_like(gradient, torch.inf if second else 1.0)
    processes.average_gradients([gradient])
    results["overflow"] = gradient.grad.cpu()
    return results


def check_interruption(processes, config, data):
    """Interrupt only the second process by Ctrl-C, resume the run, and return its losses."""
    step = Trainer._step

    def interrupted(self, number):
        if number == 3 and processes.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, number)

    whole = tune(data, replace(config, out=config.out / "whole"))
    config = replace(config, out=config.out / "parts")
    Trainer._step = interrupted
    message = outcome(lambda: tune(data, config))
    Trainer._step = step
    load = CheckpointStore.load
    if processes.rank == 1:  # as on a node with a disk of its own
        CheckpointStore.load = lambda _: None
    unseen = outcome(lambda: tune(data, replace(config, resume=True)))
    CheckpointStore.load = load
    resumed = tune(data, replace(config, resume=True))
    return {
        "message": message,
        "unseen": unseen,
        "whole": whole.stats.losses,
        "resumed": resumed.stats.losses,
        "processes": resumed.manifest.training["processes"],
    }


def main(device, model, pairs, folder):
    folder = Path(folder)
    data = load_training_data(Path(pairs))
    recipe = load_recipe("word").replace(batch_size=20, epochs=1, learning_rate=1e-3)
    config = TrainConfig(
        recipe=recipe, out=folder / "runs", model=model, precision="fp32", loss_batch=80
    )
    with joined_processes(device) as processes:
        seen = {
            "infonce": check_infonce(processes),
            "training": check_training(processes, model, data),
            "systems": check_systems(processes, model, data, folder),
        }
        if processes.count > 1:
            seen["errors"] = check_errors(processes, config, data)
            seen["interruption"] = check_interruption(processes, config, data)
        torch.save(seen, folder / f"{processes.rank}-of-{processes.count}.pt")
        if processes.rank == 1:
            os._exit(7)  # end like a crash
        processes.total(1)


if __name__ == "__main__":
    sys.stdout.write(outcome(lambda: main(*sys.argv[1:])))
