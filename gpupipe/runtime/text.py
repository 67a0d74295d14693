"""Breaks lines of text between words, for screens."""

from collections.abc import Iterator

_SEPARATORS = "/._"


def find_lines(text: str, width: int, folds: bool = False) -> Iterator[slice]:
    """Yield the parts of a text that fit into lines of `width` characters, without the spaces at
    their ends.

    Args:
        text: The text.
        width: Characters in a line.
        folds: Whether to break a longer word, after "/", "." or "_" if it has one. Else it is a
            line of its own: a terminal that breaks a path in two still copies it as one.
    """
    begin = 0
    while len(text) - begin > width:
        end = _find_break(text, begin, begin + width, folds)
        yield slice(begin, begin + len(text[begin:end].rstrip()))
        begin = end + len(text[end:]) - len(text[end:].lstrip())
    if begin < len(text) or not begin:
        yield slice(begin, len(text))


def _find_break(text: str, begin: int, limit: int, folds: bool) -> int:
    """Return where a line that begins at `begin` ends: at `limit` or before, if there is a way."""
    end = text.rfind(" ", begin, limit + 1)
    if text[begin : max(begin, end)].strip():
        return end
    if not folds:
        end = text.find(" ", limit)
        return end if end >= 0 else len(text)
    return max(text.rfind(separator, begin, limit) for separator in _SEPARATORS) + 1 or limit


def wrap_words(text: str, width: int) -> list[str]:
    """Return the lines of a text, of `width` characters at most if no word is longer, each indented
    as in the text, and as an item of a list after "- ".
    """
    lines = []
    for line in text.split("\n"):
        content = line.lstrip(" ").removeprefix("- ")
        indent = len(line) - len(content)
        first, *others = find_lines(content, max(1, width - indent))
        lines.append((line[:indent] + content[first]).rstrip())
        lines += [" " * indent + content[part] for part in others]
    return lines
