"""What the tests of training share: files of lines, commands that succeed, runs that crash."""

import contextlib

import pytest

from mirror_train.training.loop import Trainer


@pytest.fixture
def file(tmp_path):
    """file(name, *lines) writes a text file; its path."""

    def write(name, *lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def succeed(cli):
    """`cli`, of a command that ends well."""

    def run(*arguments):
        result = cli(*arguments)
        assert result.code == 0, result.err
        return result

    return run


@pytest.fixture
def crash_at(monkeypatch):
    """crash_at(step) is a context in which training ends there, as where memory is full.

    With the name of a module, only that of its trainer.
    """

    @contextlib.contextmanager
    def crash(step, module="encoder"):
        original = Trainer._step

        def crashing(self, number):
            if number == step and module in self.modules:
                raise MemoryError("simulated")
            return original(self, number)

        with monkeypatch.context() as patch, pytest.raises(MemoryError, match="simulated"):
            patch.setattr(Trainer, "_step", crashing)
            yield

    return crash
