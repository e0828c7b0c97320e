"""Apply the settings beside a tokenizer.json that change the tokens of a text.

transformers takes the vocabulary from the file, and from tokenizer_config.json the class of the
tokenizer and how it normalises texts and cuts them into words, where the class says so itself.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mirror_rt.errors import BundleError
from mirror_rt.io.limits import DECLARED

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The class of each family's tokenizer, where the files name none.
_OF_FAMILY = {
    **dict.fromkeys(("bert", "electra"), "BertTokenizer"),
    "distilbert": "DistilBertTokenizer",
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("roberta", "longformer", "roberta-prelayernorm", "data2vec-text", "ibert"),
                    "RobertaTokenizer"),
    **dict.fromkeys(("xlm-roberta", "xmod"), "XLMRobertaTokenizer"),
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}  # fmt: skip

# The families whose tokenizer is as its file is, whatever class is named; and the classes that are.
_FAMILIES_OF_FILES = frozenset({"modernbert", "nystromformer", "xlm-roberta-xl"})
_AS_FILES = ("PreTrainedTokenizer", "TokenizersBackend")
# The settings that change ids, and the names that tokenizer.json has for them.
_DECIDING = {
    "do_lower_case": "lowercase", "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars", "add_prefix_space": "add_prefix_space",
    "keep_accents": "keep_accents", "split_by_punct": "split_by_punct",
}  # fmt: skip
_STEPS = {"Lowercase": "lowercase", "StripAccents": "strip_accents"}
_ENDS = ("add_bos_token", "add_eos_token")
# The classes whose tokenizers are known by their vocabulary, and their special tokens.
_OF_VOCABULARY = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_SPECIAL = (("unk", "[UNK]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("cls", "[CLS]"),
            ("mask", "[MASK]"))  # fmt: skip
# The classes that tell the two texts of a pair apart, unless model_input_names says otherwise.
TYPED = frozenset({"BertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "ElectraTokenizer"})


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The settings of a tokenizer beside its file."""

    name: str = ""  # class of transformers; "" for a tokenizer that is used as its file is
    values: Mapping[str, Any] = field(default_factory=dict)  # the keys of tokenizer_config.json
    lowercase: bool = False  # whether texts are lower-cased first, as sentence-transformers does it
    # Whether the beginnings of long texts are cut; None where the tokenizer's file says it.
    left: bool | None = None
    # The tokenizer's file, where it was read already.
    content: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, config: Mapping[str, Any], values: Mapping[str, Any], *, lowercase: bool = False
    ) -> TokenizerSettings:
        """Return the settings by config.json and tokenizer_config.json."""
        name = values.get("tokenizer_class") or config.get("tokenizer_class")
        family = str(config.get("model_type"))
        name = str(name or _OF_FAMILY.get(family, "")).removesuffix("Fast")
        if family in _FAMILIES_OF_FILES:
            name = _AS_FILES[0]
        side = values.get("truncation_side")
        return cls(name, values, lowercase, None if side is None else side == "left")

    def read_vocabulary(self, path: Path) -> Tokenizer:
        """Make the tokenizer of a vocab.txt as BertTokenizer does; `apply` goes on from there."""
        from tokenizers import AddedToken, Tokenizer, models, processors

        added = self.values.get("added_tokens_decoder") or {}
        special = {
            name: _token(self.values.get(f"{name}_token", token)) for name, token in _SPECIAL
        }
        names = {token["content"]: token for token in special.values()}
        vocabulary = {
            line.rstrip("\n"): number for number, line in enumerate(_lines(path, self.name))
        }
        more = {str(_token(one)["content"]) for one in added.values()} - names.keys()
        missing = sorted(str(name) for name in (names.keys() - vocabulary.keys()) | more)
        if missing or path.with_name("added_tokens.json").is_file():
            raise BundleError(
                f"{path} does not hold all tokens ({', '.join(missing) or 'added_tokens.json'}): "
                "save the tokenizer with transformers, which writes tokenizer.json"
            )
        first, last = special["cls"]["content"], special["sep"]["content"]
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk"]["content"]))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
            special_tokens=[(token, vocabulary[token]) for token in (first, last)],
        )
        tokenizer.add_special_tokens([AddedToken(**token) for token in special.values()])
        return tokenizer

    def apply(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Change a tokenizer as transformers and sentence-transformers do.

        Settings in tokenizer_config.json that cannot be followed are a BundleError.
        """
        place = folder / "tokenizer_config.json"
        if made := _CLASSES.get(self.name):
            made(tokenizer, self.values)
        elif self.name not in _AS_FILES:
            self._refuse_unknown(tokenizer, place)
        self._refuse_ends(tokenizer, place)
        self._add_listed(tokenizer, place)
        if self.lowercase:
            lowercase_first(tokenizer)

    def _refuse_unknown(self, tokenizer: Tokenizer, place: Path) -> None:
        """Refuse settings of a class that is not known, unless the tokenizer's file says them."""
        steps = [tokenizer.normalizer, tokenizer.pre_tokenizer]
        said = [one for step in steps if step is not None
                for one in _flags(json.loads(cast(Any, step).__getstate__()))]  # fmt: skip
        for key, name in _DECIDING.items():
            value = self.values.get(key)
            found = [flag for known, flag in said if known == name] or [False]
            if value is not None and any(flag is not value for flag in found):
                raise BundleError(
                    f"{place} declares {key} {value!r}, and its meaning for a "
                    f"{self.name or 'tokenizer of this family'} is not known here"
                )

    def _refuse_ends(self, tokenizer: Tokenizer, place: Path) -> None:
        """Refuse settings that put other special tokens around a text than the file does."""
        given = [key for key in _ENDS if key in self.values]  # None has the effect of False
        added = [key for key in given if self.values[key]]
        if added or (given and tokenizer.num_special_tokens_to_add(is_pair=False)):
            raise BundleError(
                f"{place} declares {given[0]}, in place of the special tokens of tokenizer.json, "
                "which alone are known here"
            )

    def _add_listed(self, tokenizer: Tokenizer, place: Path) -> None:
        """Add the tokens that added_tokens_decoder lists and the tokenizer's file has otherwise."""
        from tokenizers import AddedToken

        listed = self.values.get("added_tokens_decoder") or {}
        if not isinstance(listed, Mapping) or not all(id.isdecimal() for id in listed):
            raise BundleError(f"{place}: added_tokens_decoder must map ids to tokens")
        named = {
            _token(value)["content"]
            for name, value in self.values.items()
            if name.endswith("_token") and value
        }
        present = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
        tokens = []
        for id in sorted(listed, key=int):
            values = _token(listed[id])
            special = isinstance(listed[id], dict) and bool(listed[id].get("special"))
            tokens.append(AddedToken(**values | {"special": special or values["content"] in named}))
        tokenizer.add_tokens([token for token in tokens if repr(token) not in present])


def _lines(path: Path, name: str) -> list[str]:
    """Return the lines of a vocabulary of WordPiece."""
    if name not in _OF_VOCABULARY:
        raise BundleError(
            f"{path} is the vocabulary of a {name or 'tokenizer'}, and without tokenizer.json that "
            f"of a {' or '.join(_OF_VOCABULARY)} alone is known: save the tokenizer with "
            "transformers, which writes tokenizer.json"
        )
    try:
        with path.open(encoding="utf-8") as file:
            content = file.read(DECLARED + 1)
    except ValueError as error:
        raise BundleError(f"{path} is not a vocabulary: {error}") from error
    if len(content) > DECLARED:
        raise BundleError(f"{path} has more than {DECLARED:,} characters")
    return io.StringIO(content).readlines()


def _token(value: Any) -> dict[str, Any]:
    """Return the arguments of a special token, which is a string or an object with options."""
    if not isinstance(value, dict):
        return {"content": str(value), "normalized": False, "special": True}
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    given = {name: bool(value[name]) for name in flags if name in value}
    return {"content": str(value.get("content")), "special": True, **given}


def lowercase_first(tokenizer: Tokenizer) -> None:
    """Lower-case texts before anything else, unless the tokenizer does so already."""
    from tokenizers.normalizers import Lowercase, Sequence

    steps = _steps(tokenizer)
    if not any(isinstance(step, Lowercase) for step in steps):
        tokenizer.normalizer = Sequence([Lowercase(), *steps])


def _flags(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of the steps of a tokenizer by their names, however deep they are."""
    for one in state if isinstance(state, list) else ():
        yield from _flags(one)
    for name, value in state.items() if isinstance(state, dict) else ():
        if name == "type" and value in _STEPS:
            yield _STEPS[value], True
        if name == "prepend_scheme":
            yield "add_prefix_space", value == "always"
        yield name, value
        yield from _flags(value)


def _bert(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(values.get("tokenize_chinese_chars", True)),
        strip_accents=values.get("strip_accents"),
        lowercase=bool(values.get("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _roberta(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    from tokenizers import pre_tokenizers

    space = bool(values.get("add_prefix_space", False))
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)


def _pieces(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    from tokenizers import pre_tokenizers

    scheme = "always" if values.get("add_prefix_space", True) else "never"
    tokenizer.normalizer = _charsmap(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme),
    ])  # fmt: skip


def _albert(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    from tokenizers import normalizers

    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not values.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if values.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if (charsmap := _charsmap(tokenizer)) is not None:
        steps.append(charsmap)
    _pieces(tokenizer, values)
    tokenizer.normalizer = normalizers.Sequence(steps)


def _deberta(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.Sequence([
        *([normalizers.Lowercase()] if values.get("do_lower_case", False) else []),
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ])  # fmt: skip
    scheme = "always" if values.get("add_prefix_space", True) else "first"
    split = [pre_tokenizers.Punctuation("isolated")] if values.get("split_by_punct") else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )


def _charsmap(tokenizer: Tokenizer) -> Any:
    """Return the table of characters of SentencePiece in a tokenizer's file; None without one."""
    from tokenizers.normalizers import Precompiled

    return next((step for step in _steps(tokenizer) if isinstance(step, Precompiled)), None)


def _steps(tokenizer: Tokenizer) -> list[Any]:
    """Return the normalizers of a tokenizer in their order."""
    from tokenizers.normalizers import Sequence

    found: Any = tokenizer.normalizer
    if isinstance(found, Sequence):
        return list(cast(Any, found))
    return [] if found is None else [found]


# The classes of transformers that say themselves how texts are normalised and cut into words.
_CLASSES: dict[str, Callable[[Tokenizer, Mapping[str, Any]], None]] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer",
                     "LayoutLMTokenizer", "ConvBertTokenizer", "MobileBertTokenizer",
                     "SqueezeBertTokenizer"), _bert),
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"), _roberta),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), _pieces),
    "AlbertTokenizer": _albert,
    "DebertaV2Tokenizer": _deberta,
}  # fmt: skip
