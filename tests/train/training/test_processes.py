"""Several processes give what one gives with the joined batch; where one fails, none hangs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError
from mirror_train import TorchEncoder
from mirror_train.compute.launch import is_first_process
from mirror_train.compute.processes import Processes, joined_processes
from mirror_train.data.views import dropout_seed, step_rng
from paths import TESTS
from server_process import held_port

PROBES = ["the river", "a", "old town on the river", "doctor"]
TIMEOUT = 600  # seconds after which a process hangs, however busy the machine is
WORKERS = TESTS / "support" / "processes"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}


def start(*arguments, **variables):
    line = [sys.executable, WORKERS / "process_worker.py", *arguments]
    return subprocess.Popen(
        list(map(str, line)),
        env=ENVIRONMENT | {name: str(value) for name, value in variables.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("cpu", marks=pytest.mark.full),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA cards"),
            ],
        ),
    ],
)
def seen(request, tmp_path_factory, tiny_bert, words):
    """What two processes saw, and one: (its results, [first's, second's], how the first ended).

    All three run at once.
    """
    folder = tmp_path_factory.mktemp("processes")
    pairs = folder / "pairs.txt"
    several = [(" ".join(words[i : i + 1 + i % 9]), words[i * 7 % 300]) for i in range(400)]
    pairs.write_text("".join(f"{a}||{b}\n" for a, b in several))
    arguments = (request.param, tiny_bert, pairs, folder)
    with contextlib.ExitStack() as stack:
        common = {"WORLD_SIZE": 2, "MASTER_PORT": stack.enter_context(held_port())}
        ranks = [common | {"RANK": rank, "LOCAL_RANK": rank} for rank in (0, 1)]
        workers = [stack.enter_context(start(*arguments, **rank)) for rank in [*ranks, {}]]
        for worker in workers:
            stack.callback(worker.kill)
        outputs = [worker.communicate(timeout=TIMEOUT) for worker in workers]
    codes = [worker.returncode for worker in workers]
    assert codes == [0, 7, 0], "\n".join(err for _, err in outputs)
    load = [torch.load(folder / name) for name in ("0-of-1.pt", "0-of-2.pt", "1-of-2.pt")]
    return load[0], load[1:], own_lines(outputs[0][0])


def own_lines(said):
    """What a process said, without the lines of torch 2.8 about Gloo's ranks."""
    return [line for line in said.splitlines() if not line.startswith("[Gloo]")]


def close(actual, expected):
    return (actual - expected).norm() <= 1e-6 * expected.norm()


def test_losses_are_those_of_the_joined_batch(seen):
    alone, both, _ = seen
    assert len(alone["infonce"]) == 14
    for name, (loss, gradient) in alone["infonce"].items():
        shares = [results["infonce"][name] for results in both]
        for share, _ in shares:
            assert close(share, loss), name
        # Times the number of processes: averaging the parameters' gradients divides by it.
        assert close(torch.cat([share for _, share in shares]) / 2, gradient), name


@pytest.mark.parametrize("name", ["whole", "cached"])
def test_training_is_that_of_the_joined_batch(seen, name):
    alone, both, _ = seen
    gradient, weights, losses, tokens = alone["training"][name]
    assert gradient.norm() > 0
    assert gradient.dtype == torch.float64
    for results in both:
        share = results["training"][name]
        assert close(share[0], gradient)
        assert close(share[1], weights)
        assert close(share[2], losses)
        assert share[3] == tokens


@pytest.mark.parametrize("name", ["flow", "cf", "burt", "multitask"])
def test_every_system_trains_as_in_one_process(seen, name):
    alone, both, _ = seen
    losses, vectors = alone["systems"][name]
    assert len(losses) == 4
    for results in both:
        shared, found = results["systems"][name]
        np.testing.assert_allclose(shared, losses, rtol=1e-5)
        np.testing.assert_allclose(found, vectors, atol=1e-5)
        assert results["systems"]["odd"] == (
            "ConfigError: the 3 rows of a step do not divide among 2 processes: pass --batch-size 4"
        )


def test_scaled_gradients_are_averaged_before_the_step(seen):
    """fp16: the gradients that the scaler unscales are the same, and near those of one process."""
    alone, both, _ = seen
    gradient = alone["training"]["scaled"][0]
    shares = [results["training"]["scaled"] for results in both]
    assert torch.equal(shares[0][0], shares[1][0])
    assert torch.equal(shares[0][1], shares[1][1])
    assert (shares[0][0] - gradient).norm() <= 0.02 * gradient.norm()


def test_what_one_process_cannot_do_none_does(seen):
    _, both, _ = seen
    first, second = (results["errors"] for results in both)
    for errors in (first, second):
        assert errors["shapes"].startswith("ValueError: all processes must give the same shapes")
        assert errors["seeds"] == "ConfigError: the processes of this run differ in seed: [0, 1]"
        assert errors["odd"] == (
            "ConfigError: the 81 rows of a step do not divide among 2 processes: "
            "pass --loss-batch 82"
        )
        assert errors["diverging"].startswith("ModelError: the loss became")
        assert not errors["overflow"].isfinite().any()
    assert first["disk"] == "OSError: the disk is full"
    assert second["disk"] == "ProcessGroupError: process 0 of 2: the disk is full"


def test_an_interruption_of_one_stops_all_at_the_same_step(seen):
    _, both, _ = seen
    for results in both:
        interruption = results["interruption"]
        assert interruption["message"].startswith("Interrupted: interrupted after step 4 of 5")
        assert interruption["unseen"] == (
            "ConfigError: the processes of this run differ in the step of the checkpoint, which "
            "all nodes must see: [4, 0]"
        )
        assert interruption["resumed"] == interruption["whole"]
        assert interruption["processes"] == 2


def test_a_lost_process_is_reported(seen):
    assert seen[2][0].startswith("ProcessGroupError: lost the other processes of this run")


def two_nodes(*programs):
    """How two agents of torchrun end, as on two machines, each with one process of its program.

    Returns for each its exit code, and what it said on both streams. The first has the store where
    agents meet, whose loss would end the other agent before its process can speak.
    """
    with contextlib.ExitStack() as stack:
        port, nodes = stack.enter_context(held_port()), []
        for first, program in zip((1, 0), programs, strict=True):
            line = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1,
                    "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
                    "--rdzv-conf", f"is_host={first}", "--rdzv-id", "tuning",
                    "--local-addr", "127.0.0.1", *program]  # fmt: skip
            node = subprocess.Popen(
                [sys.executable, *map(str, line)], env=ENVIRONMENT, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            nodes.append(stack.enter_context(node))
            stack.callback(kill_node, node)
        said = [node.communicate(timeout=TIMEOUT) for node in nodes]
        return [(node.returncode, *each) for node, each in zip(nodes, said, strict=True)]


def kill_node(node):
    """Kill an agent, before it can speak to others, and then its process."""
    if node.poll() is None:
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        for process in (node.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@pytest.fixture
def tuning(tiny_bert, words_file):
    """Arguments of a run of sixteen steps that is the same in one process and in two."""
    return ["tune", "--recipe", "word", "--model", tiny_bert, "--data", words_file, "--dropout", 0,
            "--span-length", 2, "--batch-size", 25, "--loss-batch", 100, "--epochs", 4,
            "--precision", "fp32", "--device", "cpu"]  # fmt: skip


def lose_a_node(tuning, folder):
    """Tune on two nodes of which one dies: the other says so. Returns the program of a node."""
    line = [*tuning, "--checkpoint-every", 1, "--out", folder / "two"]
    program = ["-m", "mirror_rt.cli", *line]
    killed = [WORKERS / "stop_at_step.py", 3, "SIGKILL", *line]
    (code, _, said), (signalled, *_) = two_nodes(program, killed)
    assert (code != 0, signalled) == (True, -signal.SIGKILL)
    assert "error: lost the other processes of this run" in said
    return program


def test_a_node_that_dies_ends_the_other(tuning, tmp_path):
    lose_a_node(tuning, tmp_path)
    assert list(tmp_path.glob("two.checkpoints/step-*.pt"))
    assert not (tmp_path / "two").exists()


@pytest.mark.full
def test_both_nodes_go_on_from_the_checkpoint(tuning, tmp_path, succeed):
    """To the folder of one process."""
    program = lose_a_node(tuning, tmp_path)
    ended = two_nodes(*[[*program, "--resume"]] * 2)
    assert [code for code, *_ in ended] == [0, 0], ended
    assert sorted(len(own_lines(out)) for _, out, _ in ended) == [0, 4], "one process speaks"
    succeed(*tuning, "--out", tmp_path / "one")
    one, two = (TorchEncoder.load(tmp_path / name).encode(PROBES) for name in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=1e-5)
    training = json.loads((tmp_path / "two" / "mirror.json").read_text())["training"]
    assert (training["processes"], training["loss_batch"], training["steps"]) == (2, 100, 16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


# Without other processes.


def test_alone_nothing_is_joined(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined_processes("cpu") as processes:
        assert processes == Processes(torch.device("cpu"))
    assert processes.total(3, 4) == [3, 4]
    assert processes.in_first(lambda: 5) == processes.first_then_all(lambda: 5) == 5
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("variables", "device", "message"),
    [
        ({"WORLD_SIZE": "two"}, "cpu", "WORLD_SIZE must be at least 1, got 'two'"),
        ({"WORLD_SIZE": "2"}, "cpu", "set to 2 without RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "tpu", "device must be auto, cpu, cuda"),
    ],
)
def test_incomplete_surroundings(monkeypatch, variables, device, message):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message), joined_processes(device):
        pass


def test_who_prints(monkeypatch):
    for size, rank, expected in [("1", "3", True), ("2", "0", True), ("2", "1", False)]:
        monkeypatch.setenv("WORLD_SIZE", size)
        monkeypatch.setenv("RANK", rank)
        assert is_first_process() is expected


def test_dropout_differs_between_processes_and_is_as_ever_in_the_first():
    seeds = [dropout_seed(step_rng(seed=42, step=7), rank=rank) for rank in range(4)]
    assert len(set(seeds)) == 4
    assert seeds[0] == int(step_rng(seed=42, step=7).integers(2**63))
