"""Trains as launched.py does, in a group in which workers are struck at a moment. Arguments: seconds a step, and strikes.

A strike is WORKER:MOMENT:GENERATION:SIGNAL: before a worker opens the store for the group of that generation (`convene`), when it
goes to meet the others (`meet`), when the first buckets have left in the fourth backward pass (`leave`), or at the fourth sum (`sum`).
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import paceline.session.whole as holding

PASS = 4
rank = os.environ["RANK"]
strikes = [strike.split(":") for strike in sys.argv[2:]]
generation = 0


def strike_if(moment: str) -> None:
    """Now, if it is this worker's turn."""
    for who, when, of, name in strikes:
        if (who, when, of) == (rank, moment, str(generation)):
            print(f"rank {rank} is struck: {moment}", flush=True)
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


class Struck(holding.Group):
    """A group in which it happens."""

    def __init__(self, seat, *arguments, **options) -> None:
        global generation
        generation = seat.generation
        self._left = self._summed = 0
        strike_if("meet")
        super().__init__(seat, *arguments, **options)

    def begin(self, part, *, ahead_s=0.0):
        adding = super().begin(part, ahead_s=ahead_s)
        self._left += ahead_s > 0.0
        if self._left == PASS:
            strike_if("leave")
        return adding

    def finish(self, addings) -> None:
        self._summed += 1
        if self._summed == PASS:
            strike_if("sum")
        super().finish(addings)


def convene(host, real=holding.convene):
    global generation
    generation += 1
    strike_if("convene")
    return real(host)


holding.Group, holding.convene = Struck, convene
sys.argv[1:] = ["plain", sys.argv[1]]
runpy.run_path(str(Path(__file__).with_name("launched.py")), run_name="__main__")
