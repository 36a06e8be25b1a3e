"""A sentence that says why, and every number in it by name: what is said is exactly what is written down."""

from __future__ import annotations

import re
from math import isfinite

LEAST = 1e-12
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def numbers_in(text: str) -> list[float]:
    """The numbers that a text says, those of the names of paces included.

    >>> numbers_in("backup:1 is predicted to train 1,240 samples/s, 1.80 times sync's 690")
    [1.0, 1240.0, 1.8, 690.0]
    """
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def said(text: str) -> dict[str, float]:
    """The numbers of a sentence that is not ours, by their place in it.

    >>> said("worker 3 waits 0.25 of the time")
    {'said_1': 3.0, 'said_2': 0.25}
    """
    return {f"said_{place}": value for place, value in enumerate(numbers_in(text), start=1)}


def written(value: float) -> str:
    """Three digits of a number as a person writes them, never with an exponent; what is below 1e-12 is 0.

    >>> [written(value) for value in (1239.6, 123.4, 1.2345, 0.00012345, 0.0, -2.5, 1e-300)]
    ['1,240', '123', '1.23', '0.000123', '0', '-2.5', '0']
    """
    if abs(value) < LEAST or not isfinite(value):
        return "0" if isfinite(value) else f"{value:g}"
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    decimals = 2 - (len(str(int(abs(value)))) - 1) if abs(value) >= 1.0 else -int(f"{abs(value):.2e}".partition("e")[2]) + 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class Sentence:
    """Collects `inputs` while the words are put together.

    >>> sentence = Sentence()
    >>> f"{sentence.pace('ksync:2')} trains {sentence.number('rate', 1239.6)} samples/s"
    'ksync:2 trains 1,240 samples/s'
    >>> sentence.inputs
    {'ksync': 2.0, 'rate': 1240.0}
    """

    def __init__(self) -> None:
        self.inputs: dict[str, float] = {}

    def number(self, name: str, value: float) -> str:
        """`value` as it is said."""
        return self._noted(name, written(value))

    def percent(self, name: str, part: float) -> str:
        """A part as a percentage; what is noted is the percentage."""
        return f"{self._noted(name, written(100.0 * part))} %"

    def pace(self, name: str) -> str:
        """A pace's name; its arguments are noted under its first word."""
        head = name.partition(":")[0]
        for index, value in enumerate(numbers_in(name)):
            self.inputs[f"{head}_{index}" if index else head] = value
        return name

    def _noted(self, name: str, text: str) -> str:
        self.inputs[name] = float(text.replace(",", ""))
        return text
