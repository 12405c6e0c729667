"""Reads Montage's tables of words: a header between bars, then one row per line."""

import pathlib


def rows(path):
    """Returns the rows of a table, as dictionaries of strings. No word may contain a space.

    Rows are split at spaces and not at the header's columns, because Montage writes wider words.
    """
    lines = pathlib.Path(path).read_text().splitlines()
    head = next(line for line in lines if line.startswith("|"))
    names = [name.strip() for name in head.strip("| ").split("|")]
    data = [line.split() for line in lines if line.strip() and line[0] not in "|\\"]
    return [dict(zip(names, words, strict=True)) for words in data]
