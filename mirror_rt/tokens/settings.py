"""Apply the settings beside a tokenizer.json that change the tokens of a text.

transformers takes the vocabulary from the file, and from tokenizer_config.json the class of the
tokenizer and how it normalises texts and cuts them into words, where the class says so itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
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

# The classes whose tokenizers are known by their vocabulary, and their special tokens.
_OF_VOCABULARY = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_SPECIAL = (("unk", "[UNK]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("cls", "[CLS]"),
            ("mask", "[MASK]"))  # fmt: skip
# The classes that tell the two texts of a pair apart, unless model_input_names says otherwise.
TYPED = frozenset({"BertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "ElectraTokenizer"})


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The settings of a tokenizer beside its file.

    Attributes:
        name: class of transformers; "" for a tokenizer that is used as its file is.
        values: the keys of tokenizer_config.json.
        lowercase: whether texts are lower-cased first, as sentence-transformers does it.
        left: whether the beginnings of long texts are cut; None where the tokenizer's file says it.
        content: the tokenizer's file, where it was read already.
    """

    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    lowercase: bool = False
    left: bool | None = None
    content: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, config: Mapping[str, Any], values: Mapping[str, Any], *, lowercase: bool = False
    ) -> TokenizerSettings:
        """Return the settings by config.json and tokenizer_config.json."""
        name = values.get("tokenizer_class") or config.get("tokenizer_class")
        name = str(name or _OF_FAMILY.get(str(config.get("model_type")), "")).removesuffix("Fast")
        side = values.get("truncation_side")
        return cls(name, values, lowercase, None if side is None else side == "left")

    def read_vocabulary(self, path: Path) -> Tokenizer:
        """Make the tokenizer of a vocab.txt, as BertTokenizer makes it; `apply` goes on from there.

        Raises:
            BundleError: the class is another one, or a special token is not in the vocabulary.
        """
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

    def apply(self, tokenizer: Tokenizer) -> None:
        """Change a tokenizer as transformers and sentence-transformers do."""
        if made := _CLASSES.get(self.name):
            made(tokenizer, self.values)
        self._add_listed(tokenizer)
        if self.lowercase:
            lowercase_first(tokenizer)

    def _add_listed(self, tokenizer: Tokenizer) -> None:
        """Add the tokens that added_tokens_decoder lists and the tokenizer's file has otherwise."""
        from tokenizers import AddedToken

        listed = self.values.get("added_tokens_decoder") or {}
        if not isinstance(listed, Mapping) or not all(id.isdecimal() for id in listed):
            raise BundleError(
                "added_tokens_decoder of tokenizer_config.json must map ids to tokens"
            )
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
