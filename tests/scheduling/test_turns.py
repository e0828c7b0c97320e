"""Several models of one process take turns; shares are counted in runs, not in seconds."""

import itertools
import math
import threading
import time

import pytest

from mirror_rt import Scheduler
from mirror_rt.scheduling import Turns
from step_encoder import StepEncoder


class Floods:
    """Schedulers that share turns: every run takes the time that `costs` has for its model.

    A run ends as soon as the next that fits beside it has begun, and never because a thread of
    another model is slow to wake: the order is the turns' alone.
    """

    def __init__(self, costs, runs=1):
        self.order, self._costs, self._now = [], costs, 0.0
        self._runs, self._expected = runs, math.inf
        self._gate, self._began = threading.Event(), threading.Condition()
        self.turns = Turns(lambda: self._now)
        self.encoders = {name: StepEncoder(held=False) for name in costs}
        for name, encoder in self.encoders.items():
            model = encoder.pipeline.model
            model.parallel_runs = runs
            model.run_batch = self._counted(name, model.run_batch)
        self.schedulers = {
            name: Scheduler(encoder, token_budget=1, turns=self.turns)
            for name, encoder in self.encoders.items()
        }

    def _counted(self, name, run):
        def counted(batch, *, normalize):
            assert self._gate.wait(60)
            with self._began:
                self.order.append(name)
                full = min(len(self.order) + self._runs - 1, self._expected)
                self._began.notify_all()
                assert self._began.wait_for(lambda: len(self.order) >= full, 60)
                self._now += self._costs[name]
            return run(batch, normalize=normalize)

        return counted

    def run(self, **texts):
        """Let texts wait, and then run all of them; return the order of the runs."""
        self._gate.clear()
        before = len(self.order)
        self._expected = before + sum(texts.values())
        futures = [
            self.schedulers[name].submit([f"{name}{i:04d}" for i in range(n)])
            for name, n in texts.items()
        ]
        asked = [self.schedulers[name]._share for name in texts]
        while not all(share.running or share.waiting for share in asked):
            time.sleep(0.001)
        self._gate.set()
        for future in futures:
            future.result(60)
        return self.order[before:]

    def close(self):
        for scheduler in self.schedulers.values():
            scheduler.close()
        assert not self.turns._shares


@pytest.fixture
def floods():
    made = []

    def make(runs=1, **costs):
        made.append(Floods(costs, runs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def longest(order, name):
    """The most runs of others between two of a model, while it has texts left."""
    runs = [(own, len(list(group))) for own, group in itertools.groupby(order, name.__eq__)]
    while runs and not runs[-1][0]:
        runs.pop()
    return max((n for own, n in runs if not own), default=0)


def test_a_flood_on_one_model_starves_no_other(floods):
    order = floods(a=1, b=1).run(a=400, b=20)
    assert order[:42].count("b") >= 20
    assert longest(order, "b") <= 2


def test_a_large_model_gets_as_much_time_and_not_as_many_runs(floods):
    order = floods(large=3, small=1).run(large=60, small=60)
    first = order[:40]
    assert abs(3 * first.count("large") - first.count("small")) <= 6


def test_a_model_may_not_save_up_the_time_in_which_it_was_idle(floods):
    models = floods(a=1, b=1)
    models.run(a=200)
    order = models.run(a=50, b=50)
    assert longest(order, "a") <= 2
    assert longest(order, "b") <= 2


def test_three_models_and_two_runs_in_flight(floods):
    order = floods(runs=2, a=1, b=1, c=1).run(a=300, b=30, c=30)
    assert order[:110].count("b") >= 25
    assert order[:110].count("c") >= 25


def test_a_model_whose_runs_fail_gives_its_turn_on(floods):
    models = floods(a=1, b=1)
    failing = models.schedulers["a"].submit(["!"])
    assert models.run(a=3, b=3).count("b") == 3
    with pytest.raises(ValueError, match="failed"):
        failing.result(60)
