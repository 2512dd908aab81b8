"""Draw a few steps of one or more Chrome traces, one below the other on the same scale, as an SVG.

    python tools/trace_figure.py synchronous=sync.json asynchronous=async.json --out docs/images/async_step.svg

Only the tracks `host` and `device` are drawn, from the launch of the first step shown.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LEFT, RIGHT, ROW, GAP, TITLE, AXIS = 920, 70, 26, 30, 6, 26, 30
COLOURS = {
    "forward": "#4e79a7",
    "prepare": "#76b7b2",
    "copy": "#76b7b2",
    "sample": "#f28e2b",
    "plan": "#59a14f",
    "launch": "#edc948",
    "wait": "#e8e8e8",
    "process": "#b07aa1",
    "outputs": "#ff9da7",
}
OTHER_COLOUR = "#bab0ac"


@dataclass(frozen=True)
class Box:
    """A span on the figure, in milliseconds since the window begins."""

    track: str
    name: str
    step: int | None
    start: float
    end: float


def read_boxes(path: Path, first_step: int, window_ms: float) -> list[Box]:
    """The spans of a window that begins with the launch of a step."""
    events: list[dict[str, Any]] = [
        event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"
    ]
    launches = [e["ts"] for e in events if e["name"] == "launch" and e["args"].get("step") == first_step]
    if not launches:
        raise SystemExit(f"{path} has no launch of step {first_step}")
    boxes = []
    for event in events:
        start = (event["ts"] - launches[0]) / 1000
        end = start + event["dur"] / 1000
        if end > 0 and start < window_ms:
            step = event["args"].get("step")
            boxes.append(Box(event["cat"], event["name"], step, max(start, 0.0), min(end, window_ms)))
    return boxes


def draw(traces: list[tuple[str, list[Box]]], window_ms: float) -> str:
    """The whole figure."""
    scale = (WIDTH - LEFT - RIGHT) / window_ms
    parts: list[str] = []
    top = 0
    for label, boxes in traces:
        parts.append(text(4, top + 17, label, "font-weight='bold'"))
        top += TITLE
        for track in ("device", "host"):
            parts.append(text(8, top + 20, track))
            parts += [draw_box(box, top, scale) for box in boxes if box.track == track]
            top += ROW + GAP
    tick = 10
    for milliseconds in range(0, int(window_ms) + 1, tick):
        x = LEFT + milliseconds * scale
        parts.insert(0, f"<line x1='{x:.1f}' y1='{TITLE}' x2='{x:.1f}' y2='{top}' stroke='#dddddd'/>")
        parts.append(text(x, top + 16, f"{milliseconds} ms", "text-anchor='middle' fill='#555555'"))
    height = top + AXIS
    size = f"viewBox='0 0 {WIDTH} {height}' font-family='sans-serif' font-size='12'"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {size}>",
            f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
            *parts,
            "</svg>",
            "",
        ]
    )


def draw_box(box: Box, top: int, scale: float) -> str:
    """A rectangle that says its name when pointed at, and on itself where there is room."""
    x, width = LEFT + box.start * scale, max((box.end - box.start) * scale, 0.6)
    colour = COLOURS.get(box.name, OTHER_COLOUR)
    name = box.name if box.step is None else f"{box.name} {box.step}"
    shape = f"<rect x='{x:.1f}' y='{top}' width='{width:.1f}' height='{ROW}' fill='{colour}'/>"
    title = f"<g><title>{escape(name)}: {box.end - box.start:.2f} ms</title>{shape}"
    ink = "#888888" if box.name == "wait" else "white"
    inside = text(x + width / 2, top + 20, name, f"text-anchor='middle' fill='{ink}'") if width > 8 * len(name) else ""
    return title + inside + "</g>"


def text(x: float, y: float, content: str, attributes: str = "") -> str:
    """A line of text."""
    return f"<text x='{x:.1f}' y='{y}' {attributes}>{escape(content)}</text>"


def main() -> None:
    """Read the traces and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="LABEL=FILE", help="traces with their titles")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the SVG to write")
    parser.add_argument("--first-step", type=int, default=20, help="step whose launch is at 0 ms (default 20)")
    parser.add_argument("--window-ms", type=float, default=110.0, help="how much to show (default 110)")
    options = parser.parse_args()
    traces = []
    for item in options.traces:
        label, _, path = item.partition("=")
        traces.append((label, read_boxes(Path(path), options.first_step, options.window_ms)))
    options.out.write_text(draw(traces, options.window_ms))


if __name__ == "__main__":
    main()
