"""A horizontal axis of a chart: wall time or the sample clock, and what of a run lies where on it."""

from __future__ import annotations

from typing import NamedTuple

from paceline.dash.curve import Point
from paceline.dash.digest import Mark, Stretch
from paceline.dash.figures import Scale, count, seconds


class Axis(NamedTuple):
    """`kind` is `wall` or `samples`: which of a point's two places the axis takes."""

    kind: str
    title: str
    scale: Scale

    def of(self, point: Point | Mark) -> float:
        """Where a point lies, in the axis' own unit."""
        return point.wall_s if self.kind == "wall" else point.samples

    def place(self, point: Point | Mark) -> float:
        """Where a point lies, 0 to 1."""
        return self.scale.place(self.of(point))

    def ends(self, stretch: Stretch) -> tuple[float, float]:
        """Where a stretch begins and ends, in the axis' own unit."""
        return (stretch.start_s, stretch.stop_s) if self.kind == "wall" else (stretch.start_samples, stretch.stop_samples)

    def shown(self, value: float) -> str:
        """A place of this axis in words."""
        return seconds(value) if self.kind == "wall" else f"{count(value)} samples"
