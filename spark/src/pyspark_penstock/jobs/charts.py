"""Charts as inline SVG: text in, text out, no script and nothing fetched. What comes from records is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

_WIDTH: Final = 720
_ROW: Final = 22
_LABEL: Final = 190
_VALUE: Final = 110
_PLOT_HEIGHT: Final = 180
_LEFT, _BOTTOM, _TOP = 70, 26, 10
_LABEL_CHARS: Final = 28


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar per (label, value, text), the longest as wide as there is room."""
    if not rows:
        return '<p class="none">nothing to show</p>'
    most = max(value for _, value, _ in rows) or 1
    room = _WIDTH - _LABEL - _VALUE
    parts = []
    for index, (label, value, text) in enumerate(rows):
        y = index * _ROW
        width = max(room * value / most, 1 if value else 0)
        shown = label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 1] + "…"
        parts.append(
            f"<g><title>{escape(label)}: {escape(text)}</title>"
            f'<text class="label" x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="bar" x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 6}" rx="2"/>'
            f'<text class="value" x="{_LABEL + width + 6:.1f}" y="{y + 15}">{escape(text)}</text></g>'
        )
    return _svg(len(rows) * _ROW, "".join(parts))


def columns(values: Sequence[float], texts: Sequence[str], ends: tuple[str, str], top: str) -> str:
    """A column per value, side by side; `ends` stand under the first and the last, `top` at the highest."""
    if not values:
        return '<p class="none">nothing to show</p>'
    most = max(values) or 1
    room = _WIDTH - _LEFT - 10
    step = room / len(values)
    parts = [
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP + _PLOT_HEIGHT}" x2="{_WIDTH - 10}" y2="{_TOP + _PLOT_HEIGHT}"/>',
        f'<line class="grid" x1="{_LEFT}" y1="{_TOP}" x2="{_WIDTH - 10}" y2="{_TOP}"/>',
        f'<text class="label" x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end">{escape(top)}</text>',
        f'<text class="label" x="{_LEFT - 8}" y="{_TOP + _PLOT_HEIGHT}" text-anchor="end">0</text>',
        f'<text class="label" x="{_LEFT}" y="{_TOP + _PLOT_HEIGHT + 18}">{escape(ends[0])}</text>',
        f'<text class="label" x="{_WIDTH - 10}" y="{_TOP + _PLOT_HEIGHT + 18}" text-anchor="end">'
        f"{escape(ends[1])}</text>",
    ]
    gap = min(1.0, step / 5)
    for index, value in enumerate(values):
        height = _PLOT_HEIGHT * value / most
        parts.append(
            f'<rect class="bar" x="{_LEFT + index * step:.2f}" y="{_TOP + _PLOT_HEIGHT - height:.2f}" '
            f'width="{max(step - gap, 0.5):.2f}" height="{height:.2f}"><title>{escape(texts[index])}</title></rect>'
        )
    return _svg(_TOP + _PLOT_HEIGHT + _BOTTOM, "".join(parts))


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers to the right, words to the left."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape('-' if value is None else str(value))}</td>"


def _svg(height: int, content: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{content}</svg>'


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
