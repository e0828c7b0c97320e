"""Apply the settings beside a tokenizer.json that change the tokens of a text.

transformers takes the vocabulary from the file, and from tokenizer_config.json the class of the
tokenizer and how it normalises texts and cuts them into words, where the class says so itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

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

    def apply(self, tokenizer: Tokenizer) -> None:
        """Change a tokenizer as transformers and sentence-transformers do."""
        if made := _CLASSES.get(self.name):
            made(tokenizer, self.values)
        if self.lowercase:
            lowercase_first(tokenizer)


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
