"""The numbers of Mirror-BERT's main tables (EMNLP 2021), by base model, set and row of a study.

Spearman's rho, means of three seeds: Tables 1 and 10 for words, Table 3 for whole systems, and
Table 20 (of which Table 7 has the averages) for the parts that are left out of one.
Section 3 gives their standard deviations over seeds: below .005 for words, .002 for sentences.
"""

from __future__ import annotations

from mirror_rt.evaluation.suites.sentences import AVERAGED
from mirror_train.experiments.study import PaperNumbers

_SETS = (*AVERAGED, "average of 7")


def _by_set(rows: dict[str, str]) -> PaperNumbers:
    """Return by set and row the numbers of rows, whose columns are those of the paper."""
    numbers = {label: list(map(float, row.split())) for label, row in rows.items()}
    return {
        name: {label: row[column] for label, row in numbers.items()}
        for column, name in enumerate(_SETS)
    }


WORDS: dict[str, PaperNumbers] = {
    "bert-base-uncased": {
        "multisimlex-en": {
            "untuned, [CLS]": 0.105,
            "untuned, mean with padding": 0.267,
            "+ Mirror": 0.556,
            "random strings": 0.393,
            "random strings, lr 5e-5": 0.481,
        }
    }
}

SENTENCES: dict[str, PaperNumbers] = {
    "bert-base-uncased": _by_set(
        {
            "untuned, [CLS]": ".215 .321 .213 .379 .442 .203 .427 .314",
            "untuned, mean with padding": ".314 .536 .433 .582 .596 .464 .528 .493",
            "+ Mirror": ".670 .801 .713 .812 .743 .764 .699 .743",
            "drophead 0.2": ".691 .811 .730 .819 .757 .780 .691 .754",
            "- dropout": ".646 .770 .691 .800 .726 .745 .701 .726",
            "- span masking": ".641 .775 .684 .777 .737 .749 .658 .717",
            "- dropout & span masking": ".587 .695 .617 .688 .683 .674 .614 .651",
        }
    ),
    "roberta-base": _by_set(
        {
            "untuned, [CLS]": ".090 .327 .210 .338 .388 .317 .355 .289",
            "untuned, mean with padding": ".134 .126 .124 .203 .224 .129 .320 .180",
            "+ Mirror": ".646 .818 .734 .802 .782 .787 .703 .753",
            "drophead 0.05": ".666 .827 .740 .824 .797 .796 .697 .764",
            "- dropout": ".619 .795 .706 .802 .777 .727 .698 .732",
            "- span masking": ".616 .786 .689 .766 .743 .756 .663 .717",
            "- dropout & span masking": ".562 .730 .643 .744 .752 .708 .638 .682",
        }
    ),
}
