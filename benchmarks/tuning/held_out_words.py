"""Keep words with translations from training, and measure an encoder on them by its teacher.

The criteria are `agreement`: Spearman's rho of the teacher's cosines of any two of the words, and
of the encoder's cosines of their translations, and of the words themselves, the mean of these; and
`found`: how near the translation of a word is found among the others, the mean of 1 / rank.
"""

from __future__ import annotations

import numpy as np
from helpers import write_whole

from mirror_rt.evaluation.readers.tables import read_lexicon
from mirror_rt.evaluation.statistics import spearman
from mirror_train.languages.joint import HeldOut

KEPT = 300
NAMES = ("agreement", "found")


class HeldOutWords:
    """Words with translations that no run is tuned on, and files of all other strings.

    From each of the dictionaries (en-TAG.*, WORD tab WORD) 300 words are kept with their
    translations; `words` is a folder of the words of the languages that are left, and `files` are
    the dictionaries that are left.
    """

    def __init__(self, data, dictionaries, languages, work):
        self.held, self.files = {}, []
        for path in dictionaries:
            entries = list(dict(reversed(read_lexicon(path))).items())  # first translations
            rows = np.random.default_rng(0).permutation(len(entries))[:KEPT]
            self.held[path.stem[3:5]] = [entries[row] for row in sorted(rows)]
        kept = {word for held in self.held.values() for pair in held for word in pair}
        for path in dictionaries:
            lines = ["\t".join(pair) for pair in read_lexicon(path) if not kept & {*pair}]
            self.files.append(work / path.name)
            write_whole(self.files[-1], "\n".join(lines) + "\n")
        self.words = work / "words"
        self.words.mkdir(exist_ok=True)
        for one in languages:
            lines = (data / "words" / f"{one}.txt").read_text(encoding="utf-8").split("\n")
            left = [line for line in lines if line and line not in kept]
            write_whole(self.words / f"{one}.txt", "\n".join(left) + "\n")

    def criteria(self, encoder, teacher):
        """Return both criteria, of the mean over languages and of each."""
        agreed, found = {}, {}
        for language, held in self.held.items():
            words, translations = map(list, zip(*held, strict=True))
            wanted = _similarities(teacher, words)
            agreed[f"en of {language}"] = spearman(_similarities(encoder, words), wanted)
            agreed[language] = spearman(_similarities(encoder, translations), wanted)
            among = list(dict.fromkeys(translations))
            found[language] = HeldOut(language, held, among).reciprocal_rank(encoder)
        means = dict(zip(NAMES, (agreed, found), strict=True))
        each = {f"{kind}, {one}": value for kind, of in means.items() for one, value in of.items()}
        return {kind: float(np.mean([*of.values()])) for kind, of in means.items()} | each


def _similarities(encoder, texts):
    """Return the cosines of every two texts, as a list."""
    x = encoder.encode(texts, normalize_embeddings=True)
    return (x @ x.T)[np.triu_indices(len(texts), 1)]
