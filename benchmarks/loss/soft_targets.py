"""Compare the times of soft targets and of Matryoshka with that of InfoNCE, on the CPU.

    python benchmarks/loss/soft_targets.py [--strings 200 1000 4000] [--dim 384] [--teacher-dim 384]
        [--first 64]

Forward and backward on two views of the strings, in turn: InfoNCE; soft targets besides (`weight`
.5), whose goal is at most 1.6 times as long; and InfoNCE of the first dimensions besides, as
`--matryoshka` has it, whose goal is 1.3 times. Medians and their ratios are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from mirror_rt.io.tables import markdown_table
from mirror_train.loss import infonce, soft_targets


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, nargs="+", default=[200, 1000, 4000])
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--teacher-dim", type=int, default=384)
    parser.add_argument("--first", type=int, default=64, help="dimensions of Matryoshka's part")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=10, help="of each size")
    given = parser.parse_args()
    rows = []
    for strings in given.strings:
        torch.manual_seed(0)
        views = torch.randn(2, strings, given.dim).to(getattr(torch, given.dtype))
        z1, z2 = (view.requires_grad_() for view in views.unbind())
        teacher = torch.randn(strings, given.teacher_dim)
        options = {"temperature": given.temperature}
        losses = {
            "infonce": lambda z1=z1, z2=z2, o=options: infonce(z1, z2, **o),
            "with soft targets": lambda z1=z1, z2=z2, t=teacher, o=options: soft_targets(
                [z1, z2], t, weight=0.5, **o
            ),
            "with the first": lambda z1=z1, z2=z2, n=given.first, o=options: (
                infonce(z1, z2, **o) + infonce(z1[:, :n], z2[:, :n], **o)
            ),
        }
        times = {name: [] for name in losses}
        end = time.perf_counter() + given.seconds
        while time.perf_counter() < end or len(times["infonce"]) < 3:
            for name, loss in losses.items():
                began = time.perf_counter()
                torch.autograd.grad(loss(), (z1, z2))
                times[name].append(time.perf_counter() - began)
        plain, *others = (statistics.median(one[1:]) for one in times.values())
        figures = [f"{1e3 * one:.2f} ms, {one / plain:.2f} times" for one in others]
        rows.append([str(strings), f"{1e3 * plain:.2f} ms", *figures])
    print(markdown_table(["strings", *times], rows))


if __name__ == "__main__":
    main()
