"""Run `mirror-rt` in this process, and send a signal when a step of training begins.

It is called as `python stop_at_step.py NUMBER SIGNAL ARGUMENTS...`. SIGKILL ends the parent first:
an agent of torchrun, which could tell the others.
"""

import os
import signal
import sys

from mirror_rt.cli import main
from mirror_train.training.loop import Trainer

number, name, *arguments = sys.argv[1:]
step, begun = Trainer._step, []


def stopped(self, at):
    begun.append(at)
    if len(begun) == int(number):
        if name == "SIGKILL":
            os.kill(os.getppid(), signal.SIGKILL)
        signal.raise_signal(signal.Signals[name])
    return step(self, at)


Trainer._step = stopped
sys.exit(main(arguments))
