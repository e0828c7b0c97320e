"""Read a tokenizer.json with the settings beside it, and check that it works."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mirror_rt.errors import BundleError
from mirror_rt.tokens.settings import TokenizerSettings

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

MOST_ID = 2**31 - 1
# Finds numbers of ten or more digits in a tokenizer.json. Only if there are any, the vocabulary is
# searched for ids above `MOST_ID`, because listing it takes as long as loading it.
_PERHAPS_LARGER_ID = re.compile(rb'"\s*:\s*[0-9]{10}')


def read_tokenizer(
    path: Path, settings: TokenizerSettings | None, *, pad_id: int
) -> tuple[Tokenizer, bool]:
    """Return the tokenizer of a file, and whether long texts lose their beginnings.

    Where there is no such file, a vocab.txt beside its place is enough for WordPiece. A
    file that is damaged, or does not go with `pad_id`, is a BundleError.
    """
    from tokenizers import Tokenizer  # takes a quarter of the time of importing mirror_rt

    content = None if settings is None else settings.content
    vocabulary = path.with_name("vocab.txt")
    if settings is not None and not path.exists() and vocabulary.is_file():
        content, tokenizer = b"", settings.read_vocabulary(vocabulary)
    else:
        if not path.is_file():  # reading a pipe would wait forever
            raise BundleError(f"{path} is not a regular file")
        content = path.read_bytes() if content is None else content
        with library_errors(f"{path} is not a tokenizer file"):
            tokenizer = Tokenizer.from_buffer(content)
    left = settings is not None and settings.left
    if left is None:
        left = (tokenizer.truncation or {}).get("direction") == "left"
    if settings is not None:
        settings.apply(tokenizer, path.parent)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with library_errors("the tokenizer failed"):
        fault = _fault(tokenizer, pad_id, larger_ids=bool(_PERHAPS_LARGER_ID.search(content)))
    if fault:
        raise BundleError(f"{path} cannot be used: {fault}")
    return tokenizer, left


def _fault(tokenizer: Tokenizer, pad_id: int, *, larger_ids: bool) -> str | None:
    """Return a fault that the library would only notice with a text, or None."""
    if tokenizer.id_to_token(pad_id) is None:
        return f"it has no token {pad_id}, the pad_id of the manifest"
    vocabulary = tokenizer.get_vocab() if larger_ids else {}
    encoding = tokenizer.encode("a")
    if (largest := max([*vocabulary.values(), *encoding.ids], default=0)) > MOST_ID:
        return f"its vocabulary or post_processor has the token id {largest}, above {MOST_ID}"
    if len(encoding.tokens) != len(encoding.ids):
        return "its post_processor has special tokens of several ids and one name"
    # A letter alone may be removed by the rules for another script.
    if not _has_text(encoding) and not _has_text(tokenizer.encode("я 1 的 .")):
        return "it gives special tokens alone, whatever the text"
    # The library cuts a text before the post-processor, which may then repeat the text.
    least = tokenizer.num_special_tokens_to_add(is_pair=False) + 1
    tokenizer.enable_truncation(least)
    obeys = len(tokenizer.encode("a a a")) <= least
    tokenizer.no_truncation()
    return None if obeys else "its post_processor repeats the text"


def _has_text(encoding: Encoding) -> bool:
    return 0 in encoding.special_tokens_mask


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn the errors of `tokenizers` into a BundleError that says `what` is wrong."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - it is raised again
        raise_library_error(error, what)


def raise_library_error(error: BaseException, what: str) -> NoReturn:
    """Turn an error that `tokenizers` raises because of an inconsistent file into a BundleError.

    It raises bare Exception, and if its Rust code panics, a class not derived from Exception.
    """
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        raise BundleError(f"{what}: {error}") from error
    raise error
