"""What notebooks show: tables and sentences, with numbers rounded for readers."""

from __future__ import annotations

import html
import math
from typing import Any, Iterable, Mapping, Sequence

#: Digits of a number that is shown.
_DIGITS = 4


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that are no objects or lists."""
    return {key: value for key, value in fields.items() if not isinstance(value, (dict, list))}


def rounded(value: Any) -> str:
    """Returns a value as text, a number with four digits, and its whole part in groups of three.

    >>> from pipesim._html import rounded
    >>> rounded(0.2727272727272727), rounded(33.0), rounded(15829.4), rounded(70553706496), rounded("zb-v"), rounded(None)
    ('0.2727', '33', '15,829', '70,553,706,496', 'zb-v', '')
    """
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value) and (value == 0 or 1e-4 <= abs(value) < 1e15):
        digits = max(0, _DIGITS - 1 - math.floor(math.log10(abs(value)))) if value else 0
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table with a row each, of the plain fields that any of them has."""
    shown = [plain(row) for row in rows]
    names = list(dict.fromkeys(name for row in shown for name in row))

    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(rounded(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(names, 'th')}{''.join(line(map(row.get, names), 'td') for row in shown)}</table>"


def lines(title: str, sentences: Sequence[str]) -> str:
    """Returns a title with sentences below."""
    return f"<p><b>{html.escape(title)}</b></p>" + "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
