"""The command `mirror-rt sample`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.errors import ConfigError
from mirror_rt.io.atomic import check_free, new_file
from mirror_train.data.samples import FORMS, read_corpus, sample
from mirror_train.data.strings import longer_than


@dataclass(frozen=True, kw_only=True)
class Sample(Invocation):
    """Draw different raw strings from a published corpus, one a line, to tune on.

    nli: SNLI and MultiNLI, .jsonl or .txt; qnli: GLUE's train.tsv; sts: sts-train.csv of the STS
    benchmark; umls: the names in MRCONSO.RRF; wikimatrix: WikiMatrix.A-B.tsv or .tsv.gz; lines:
    one string a line, such as SimCSE's wiki1m_for_simcse.txt.

    Examples:
        mirror-rt sample umls --data MRCONSO.RRF --out names.txt
        mirror-rt sample nli --data snli_1.0_train.jsonl multinli_1.0_train.jsonl --out lines.txt
        mirror-rt sample wikimatrix --data WikiMatrix.en-ru.tsv.gz --lang ru --out ru.txt
        mirror-rt sample lines --data wiki1m_for_simcse.txt --longer-than 5 --size 0 --out wiki.txt
    """

    form: Annotated[
        Literal[tuple(FORMS)],  # type: ignore[valid-type]
        Help("the form of the files", "FORM", word=True, flag=None),
    ]
    data: Annotated[tuple[Path, ...], Help("the files; .gz is unpacked", "FILE", many=True)]
    out: Annotated[Path, Help("file to write", "FILE.txt")]
    size: Annotated[int, Help("how many strings; 0 for all")] = 10_000
    seed: Annotated[int, Help("decides which")] = 42
    lang: Annotated[str, Help("their language, where a file has several", "TAG")] = "en"
    longer_than: Annotated[int, Help("strings of more than N words alone", "N")] = 0
    overwrite: Annotated[bool, Help("replace an existing file")] = False

    def run(self) -> None:
        if min(self.size, self.seed, self.longer_than) < 0:
            raise ConfigError("--size, --seed and --longer-than must be at least 0")
        check_free(self.out, overwrite=self.overwrite)
        data = longer_than(read_corpus(self.form, self.data, language=self.lang), self.longer_than)
        drawn = sample(data.first, self.size or len(data), seed=self.seed)
        with new_file(self.out, overwrite=self.overwrite) as file:
            file.write("".join(f"{text}\n" for text in drawn).encode())
        print(f"{self.out}: {len(drawn):,} of {len(data):,} different strings")
