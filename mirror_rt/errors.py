"""The exceptions of mirror_rt, mirror_train and mirror_export.

MirrorError
|-- ConfigError (ValueError)             an option or recipe field has an unusable value
|   `-- UnknownOptionError (TypeError)   a function takes no such keyword argument
|-- DataError (ValueError)               a data file cannot be used
|-- InvalidTextError (ValueError)        one or more texts cannot be encoded
|   `-- NonFiniteError                   the model gives them NaN or infinity
|-- ModelError                           a Hugging Face model cannot be loaded or trained
|-- BundleError                          a bundle is incomplete or not one
|   |-- BundleVersionError               it comes from a newer mirror_rt
|   `-- BundleIntegrityError             a file of it is missing or was changed
|-- HubError                             a model hub lacks or refuses something, or is unreachable
|-- ProcessGroupError                    another process of a run on several has failed
|-- ClosedError (RuntimeError)           an Encoder, Scheduler or Client is used after close()
|-- ReentrantCallError (RuntimeError)    a signal handler calls the Scheduler that it interrupted
|-- DeadlineError (TimeoutError)         the time that a caller allowed is over
|-- OverloadedError                      too much waits already: try again later
|-- ServerError                          an embedding server is not reached, refuses or fails
|-- ParityError                          an exported graph disagrees with PyTorch
|-- OutputExistsError (FileExistsError)  the output is already there
|-- ProviderError                        a requested execution provider is not available
`-- MissingDependencyError (ImportError) an optional dependency is not installed
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """An option that an error names, alone or with a value; as text it reads as in Python.

    A surface with names of its own writes it by them: `--threads 3` for `threads=3`.
    """

    name: str
    value: Any = ...

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={self.value!r}"


class NotText(str):
    """The reason why a value that is no text cannot be encoded.

    Attributes:
        type: name of the value's type in Python.
    """

    type: str

    @classmethod
    def of(cls, value: object) -> NotText:
        """Give the reason for a value."""
        reason = cls(f"expected str, got {type(value).__name__}")
        reason.type = type(value).__name__
        return reason


class MirrorError(Exception):
    """The base class of every error that this project raises on purpose.

    Attributes:
        parts: the message in pieces: texts, and settings, which each surface writes in its own way.
    """

    def __init__(self, *parts: str | Setting) -> None:
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    def told(self, write: Callable[[str | Setting], str]) -> str:
        """Return the message, with every piece as a surface writes it."""
        return "".join(map(write, self.parts))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the attributes, whatever the constructor takes."""
        state = {**vars(self), "args": self.args}  # which OSError takes in its constructor alone
        return copyreg.__newobj__, (type(self), *self.args), state  # type: ignore[attr-defined]


class ConfigError(MirrorError, ValueError):
    """An option or a recipe field has a value that cannot be used.

    Attributes:
        field: name of the option in Python; None where the message names none.
        expected: the condition on its value; None where the message describes the fault otherwise.
        value: the value that it has.
    """

    def __init__(
        self,
        *parts: str | Setting,
        field: str | None = None,
        expected: str | None = None,
        value: Any = None,
    ) -> None:
        if field is not None and expected is not None:
            parts = Setting(field), f" must be {expected}, got {value!r}"
        super().__init__(*parts)
        named = next((part for part in parts if isinstance(part, Setting)), Setting(""))
        self.field, self.expected = named.name or None, expected
        self.value = named.value if expected is None and named.value is not ... else value


class UnknownOptionError(ConfigError, TypeError):
    """A function was given a keyword argument that it does not take."""


class DataError(MirrorError, ValueError):
    """A data file is missing, empty, not text, or not of the expected form."""


class InvalidTextError(MirrorError, ValueError):
    """One or more texts cannot be encoded.

    Attributes:
        items: (position in the input, reason) of every unusable text, in order.
    """

    def __init__(self, items: list[tuple[int, str]], *, noun: str = "item", hint: str = "") -> None:
        parts = ["cannot encode "]
        for i, reason in items[:3]:
            parts += ["; "] * (len(parts) > 1) + [f"{noun} {i}: ", reason]
        more = f"; and {len(items) - 3} more" if len(items) > 3 else ""
        super().__init__(*parts, more + hint)
        self.items = items


class NonFiniteError(InvalidTextError):
    """The model gives one or more texts a vector that holds NaN or infinity."""

    def __init__(self, rows: Iterable[int]) -> None:
        super().__init__([(int(row), "the model gives it no finite vector") for row in rows])


@contextlib.contextmanager
def renumbered(rows: Sequence[int]) -> Iterator[None]:
    """Let the errors of a block number its texts as in the whole input: text i has `rows[i]`."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(rows[i] for i, _ in error.items) from error
    except InvalidTextError as error:
        raise InvalidTextError(sorted((rows[i], why) for i, why in error.items)) from error


class ModelError(MirrorError):
    """A Hugging Face model folder or name cannot be loaded, trained or exported."""


class BundleError(MirrorError):
    """A folder is not a bundle, or its manifest cannot be read."""


class BundleVersionError(BundleError):
    """A bundle was written by a newer version than this one understands."""


class BundleIntegrityError(BundleError):
    """A file of a bundle is missing, or differs from the hash in its manifest."""


class HubError(MirrorError):
    """A model hub lacks the requested files, refuses the request, or cannot be reached."""


class ProcessGroupError(MirrorError):
    """Another process of the same run has failed or ended; its own message says why."""


class ClosedError(MirrorError, RuntimeError):
    """An Encoder, Scheduler or Client is used after `close()`, or in another process."""


class ReentrantCallError(MirrorError, RuntimeError):
    """A signal handler calls a Scheduler in the middle of another call of the same thread."""


class DeadlineError(MirrorError, TimeoutError):
    """The time that the caller allowed is over."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(f"no vector within {timeout} s: give more time, or load the machine less")


class OverloadedError(MirrorError):
    """A call is not accepted because too much waits already.

    Attributes:
        retry_after: estimated seconds until all waiting work has run; None if unknown.
    """

    def __init__(self, what: str, *, retry_after: float | None) -> None:
        when = "later" if retry_after is None else f"in about {max(retry_after, 0.01):.2g} s"
        super().__init__(f"overloaded: {what}; try again {when}, or raise the limit")
        self.retry_after = retry_after


class ServerError(MirrorError):
    """An embedding server cannot be reached, refuses a request, or fails at it.

    Attributes:
        status: status code of HTTP; None if there was no response.
        request_id: name of the request in the server's log; None if there was no response.
    """

    def __init__(
        self, message: str, *, status: int | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message if request_id is None else f"{message} (request {request_id})")
        self.status = status
        self.request_id = request_id


class ParityError(MirrorError):
    """An exported graph gives different vectors from the PyTorch model."""


class OutputExistsError(MirrorError, FileExistsError):
    """The output path already exists, and overwriting it was not requested."""


class ProviderError(MirrorError):
    """A requested execution provider is not available in onnxruntime."""


class MissingDependencyError(MirrorError, ImportError):
    """A package that belongs to an optional extra is not installed."""


@contextlib.contextmanager
def importing(module: str, *, extra: str, purpose: str) -> Iterator[None]:
    """Let the block import an optional dependency, or raise an error that names its extra.

    Only an absent module becomes `MissingDependencyError`; one that is present but fails to
    import (a broken install) raises its own error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        choices = " or ".join(f"pip install 'mirror-rt[{name}]'" for name in extra.split("|"))
        raise MissingDependencyError(
            f"{purpose} needs the package {module!r}, which is not installed: {choices}"
        ) from error


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency and return it, with the error of `importing`."""
    with importing(module, extra=extra, purpose=purpose):
        found = importlib.import_module(module)
    return found  # noqa: RET504  # mypy assumes that the block may swallow errors


def lacks_memory(error: BaseException) -> bool:
    """Return whether the system had no memory, or none for one more thread."""
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


NO_MEMORY = (
    "there is not enough memory: raise its limit, or load less (a smaller model, fewer workers)"
)
