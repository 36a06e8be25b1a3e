"""Numbers as people read them, and the ticks of an axis."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple


def count(value: float) -> str:
    """A whole number with its thousands set off."""
    return f"{value:,.0f}"


def decimal(value: float, digits: int = 4) -> str:
    """`digits` significant digits, without a superfluous zero; far from 1 with an exponent.

    >>> decimal(0.98651), decimal(1.5e-7), decimal(120000.0)
    ('0.9865', '1.5e-07', '120,000')
    """
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def seconds(value: float) -> str:
    """A duration in at most two units.

    >>> seconds(0.0123), seconds(7.25), seconds(75.2), seconds(3750)
    ('12 ms', '7.2 s', '1 min 15 s', '1 h 2 min')
    """
    if value == 0:
        return "0 s"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms" if value >= 0.001 else f"{value * 1000:.2g} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def size(num_bytes: float) -> str:
    """A number of bytes in powers of ten, as disks and networks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def percent(part: float, whole: float) -> str:
    """A share; what is there, however little, is never shown as 0 %."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return "< 0.1 %"
    return f"{share:.0f} %" if share >= 10 or share == round(share) else f"{share:.1f} %"


def short(value: float, step: float) -> str:
    """A tick's label: no more digits than `step` needs, thousands and millions by letter.

    >>> short(20000, 5000), short(0.25, 0.05), short(1500000, 500000), short(0, 0.1), short(2.5e-05, 5e-06)
    ('20k', '0.25', '1.5M', '0', '2.5e-5')
    """
    if value == 0:
        return "0"
    for letter, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= unit and (step >= unit / 1000 or abs(value) >= 100 * unit):
            return f"{value / unit:.{_digits(step / unit)}f}{letter}"
    if step < 1e-4:
        return _brief(f"{value:.{max(0, math.floor(math.log10(abs(value))) - math.floor(math.log10(step)))}e}")
    return f"{value:.{_digits(step)}f}"


def _brief(written: str) -> str:
    """A number without what its exponent does not need: 5e-05 is 5e-5."""
    return re.sub(r"e([+-])0?", lambda sign: f"e{sign[1].lstrip('+')}", written)


def _digits(step: float) -> int:
    """Decimals that tell multiples of `step` apart; steps are 1, 2, 2.5 or 5 times a power of ten."""
    for digits in range(6):
        if math.isclose(step * 10**digits, round(step * 10**digits), rel_tol=1e-6):
            return digits
    return 6


class Tick(NamedTuple):
    """A place on an axis, 0 to 1, and what is written there."""

    place: float
    label: str


class Scale(NamedTuple):
    """Values from `low` to `high` on an axis from 0 to 1, in proportion or by logarithm; `unit` divides the labels."""

    low: float
    high: float
    log: bool = False
    unit: float = 1.0

    def place(self, value: float) -> float:
        """Where `value` lies; beyond 0 and 1 for what is out of range."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low / 10))
        return (value - low) / (high - low)

    def ticks(self, most: int = 6) -> list[Tick]:
        """At most about `most` ticks at round values."""
        if self.log:
            return self._decades()
        low, high = self.low / self.unit, self.high / self.unit
        step = nice_step((high - low) / most)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [Tick(self.place(number * step * self.unit), short(number * step, step)) for number in range(first, last + 1)]

    def _decades(self) -> list[Tick]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 3 else (1,)
        every = max(1, (last - first) // 6)
        values = [factor * 10.0**decade for decade in range(first, last + 1, every) for factor in factors]
        return [Tick(self.place(value), _brief(f"{value:g}")) for value in values if self.low * 0.999 <= value <= self.high * 1.001]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))


def value_scale(values: Sequence[float]) -> Scale:
    """An axis for finite `values`: round ends, logarithmic when they are positive and span more than three decades.

    Values up to 1 are taken for shares: their axis does not go beyond 1.
    """
    low, high = min(values), max(values)
    if low > 0 and high / low > 1000:
        return Scale(low / 1.2, high * 1.2, log=True)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        margin = 0.5 * abs(high) or 1.0
        low, high = low - margin, high + margin
    if 0 <= low < 0.35 * high:
        low = 0.0
    step = nice_step((high - low) / 5)
    top = math.ceil(high / step - 1e-9) * step
    return Scale(math.floor(low / step + 1e-9) * step, 1.0 if max(values) <= 1.0 < top else top)


def time_unit(extent_s: float) -> tuple[float, str]:
    """The unit of a time axis of this extent: its seconds and its name."""
    if extent_s < 180:
        return 1.0, "s"
    return (60.0, "min") if extent_s < 3 * 3600 else (3600.0, "h")
