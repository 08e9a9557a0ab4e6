"""A table as a picture: how long jobs take, and how many of their runs die; in light colours and dark ones. Pure."""

from __future__ import annotations

import math
from html import escape
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from benchmarks.lab.contenders import DEFAULT, ORACLE

WIDTH, HEIGHT, FONT = 720.0, 420.0, 14
LEFT, RIGHT, TOP, BOTTOM = 64.0, 132.0, 56.0, 52.0
FONTS = "-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
HOURS, DEATHS = (0.5, 1, 2, 4), (0, 5, 20, 50, 100, 200, 500)
# Labels of points that are nearer than that would cover each other.
LABEL_HEIGHT, CHARACTER = 17.0, 7.4


class Colours(NamedTuple):
    """What a page's theme asks for."""

    ground: str
    text: str
    faint: str
    grid: str
    ours: str


LIGHT = Colours("#ffffff", "#24292f", "#57606a", "#d8dee4", "#0f766e")
DARK = Colours("#0d1117", "#e6edf3", "#9198a1", "#30363d", "#2dd4bf")


def svg(result: Mapping[str, Any], colours: Colours) -> str:
    """The picture of one table of ``lab_day.py``."""
    points = _points(result["contenders"])
    scale = _Scale(max(x for x, _, _ in points), max(y for _, y, _ in points))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
            f'height="{HEIGHT:g}" font-family="{escape(FONTS)}" font-size="{FONT}" fill="{colours.text}">',
            f'<rect width="100%" height="100%" rx="8" fill="{colours.ground}"/>',
            _text(
                LEFT,
                26,
                f"A lab's day of {result['jobs']} jobs: how long a job takes, and how many runs die",
                weight="bold",
            ),
            *_axes(result, scale, colours),
            *_marks(points, scale, colours),
            "</svg>",
            "",
        ]
    )


def _points(contenders: Mapping[str, Any]) -> list[tuple[float, float, str]]:
    """Runs that died, hours, and the names of those that are there; equal ones are one point."""
    found: dict[tuple[float, float], list[str]] = {}
    for name, row in contenders.items():
        place = (round(row["failed"] + row["victims"], 1), round(row["mean_h"], 2))
        found.setdefault(place, []).append(name)
    return [(died, hours, " = ".join(names)) for (died, hours), names in found.items()]


class _Scale:
    """From runs and hours to the picture; few deaths are drawn wider than many, and hours by their ratio."""

    def __init__(self, most_died: float, most_hours: float) -> None:
        self.deaths = [tick for tick in DEATHS if tick <= most_died * 1.25 or tick <= DEATHS[1]]
        self.most = max(most_died, self.deaths[-1])
        self.top_hours = max(most_hours * 1.1, HOURS[2])
        self.low_hours = 0.4

    def x(self, died: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.sqrt(died / self.most)

    def y(self, hours: float) -> float:
        part = math.log(hours / self.low_hours) / math.log(self.top_hours / self.low_hours)
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * part


def _axes(result: Mapping[str, Any], scale: _Scale, colours: Colours) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for hours in HOURS:
        if hours <= scale.top_hours:
            yield _line(LEFT, scale.y(hours), right, scale.y(hours), colours.grid)
            yield _text(LEFT - 8, scale.y(hours) + 5, f"{hours:g} h", colour=colours.faint, anchor="end")
    for died in scale.deaths:
        yield _line(scale.x(died), TOP, scale.x(died), bottom, colours.grid)
        yield _text(scale.x(died), bottom + 18, f"{died:g}", colour=colours.faint, anchor="middle")
    bound = min(result["bounds_h"].values())
    yield _line(LEFT, scale.y(bound), right, scale.y(bound), colours.faint, dashes="4 4")
    yield _text(right + 8, scale.y(bound) + 5, "nothing is faster", colour=colours.faint)
    yield _text(LEFT, 46, "mean time from submission to success", colour=colours.faint)
    server = f"{result['gpus']} GPUs of {result['memory_gib']} GiB, load {result['load']:g}"
    told = f"runs that died for memory in a day ({server})"
    yield _text((LEFT + right) / 2, HEIGHT - 12, told, colours.faint, "middle")


def _marks(points: Sequence[tuple[float, float, str]], scale: _Scale, colours: Colours) -> Iterator[str]:
    taken: list[tuple[float, float, float]] = []
    for died, hours, names in sorted(points, key=lambda point: DEFAULT not in point[2].split(" = ")):
        x, y, is_ours = scale.x(died), scale.y(hours), DEFAULT in names.split(" = ")
        colour = colours.ours if is_ours else colours.faint
        hollow = f' fill-opacity="0.15" stroke="{colour}" stroke-width="2"' if names == ORACLE else ""
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{7 if is_ours else 5}" fill="{colour}"{hollow}/>'
        label = _free_place(x + 11, y + 5, CHARACTER * len(names), taken)
        taken.append((x + 11, label, CHARACTER * len(names)))
        weight = "bold" if is_ours else ""
        yield _text(x + 11, label, names, colours.ours if is_ours else colours.text, weight=weight)


def _free_place(x: float, y: float, width: float, taken: Sequence[tuple[float, float, float]]) -> float:
    """The height nearest to ``y`` at which a label covers no other one."""
    for distance in (0, -1, 1, -2, 2, -3, 3):
        height = y + distance * LABEL_HEIGHT
        if not any(abs(height - b) < LABEL_HEIGHT and x < a + w and a < x + width for a, b, w in taken):
            return height
    return y


def _text(x: float, y: float, words: str, colour: str = "", anchor: str = "", weight: str = "") -> str:
    named = (("fill", colour), ("text-anchor", anchor), ("font-weight", weight))
    attributes = "".join(f' {name}="{value}"' for name, value in named if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'
