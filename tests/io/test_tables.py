"""Tables for a terminal and in Markdown."""

from mirror_rt.io.tables import markdown_table, text_fields, text_table

ROWS = [["a", "1.0", "of en"], ["a | b", "12.5", "of\nfr"]]


def test_in_columns():
    assert text_table(["name", "score", "set"], [["a", "1.0", "en"], ["longer", "12.5", ""]]) == (
        "name    score  set\na       1.0    en\nlonger  12.5"
    )
    assert text_fields([("a", "x y"), ("long", "z")]) == "a     x y\nlong  z"


def test_in_markdown_no_cell_ends_its_row():
    shown = markdown_table(["", "score", "set"], [*ROWS, ["c", "left out"]], numbers=True)
    assert shown.splitlines() == [
        "|  | score | set |",
        "|---|--:|--:|",
        "| a | 1.0 | of en |",
        r"| a \| b | 12.5 | of fr |",
        "| c | left out |",
    ]
    assert markdown_table(["a", "b"], []).splitlines() == ["| a | b |", "|---|---|"]
