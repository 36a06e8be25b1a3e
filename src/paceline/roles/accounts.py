"""The books of a run: what was folded, by whom, how stale, how long it took. Pure sums; the summary is made of them."""

from __future__ import annotations

from typing import NamedTuple

from paceline.messages import Ready


class Tally:
    """One worker's sums, kept after it has left."""

    def __init__(self) -> None:
        self.samples = self.steps = self.refused = 0
        self.compute_s = self.wait_s = 0.0


class Ledgers(NamedTuple):
    """Sample-epochs by what became of them."""

    once: int = 0
    repeated: int = 0
    skipped: int = 0
    undone: int = 0


class Accounts:
    """Everything that `summary.json` reports and the progress line shows."""

    def __init__(self) -> None:
        self.samples = self.updates = self.num_steps = self.pushed_bytes = self.pulled_bytes = self.refused = self.moves = 0
        self.uncounted = self.decisions = self.restores = 0
        self.ledgers = Ledgers()
        self.tallies: dict[int, Tally] = {}
        self.stalenesses: dict[int, int] = {}
        self.paces: dict[str, int] = {}
        self.lost: list[int] = []
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.loss: float | None = None
        self._final: dict[str, dict[int, float]] = {}

    def of(self, worker: int) -> Tally:
        """The sums of `worker`."""
        tally = self.tallies.get(worker)
        if tally is None:
            tally = self.tallies[worker] = Tally()
        return tally

    def logged(self, worker: int, metrics: dict[str, float], weight: int) -> None:
        """A line of the script; `loss` is smoothed over about 50 lines, weighted by samples."""
        for name, value in metrics.items():
            self._final.setdefault(name, {})[worker] = value
        loss = metrics.get("loss")
        if loss is not None and loss == loss:
            share = min(1.0, 0.02 * max(1, weight) / 32)
            self.loss = loss if self.loss is None else self.loss + share * (loss - self.loss)

    def begin(self, now_s: float) -> None:
        """Something was leased; the first time is when the work began."""
        if self.first_s is None:
            self.first_s = now_s

    def stepped(self, worker: int, ready: Ready, pushed_bytes: int) -> None:
        """A worker took a step."""
        tally = self.tallies[worker]
        tally.steps += 1
        self.num_steps += 1
        tally.compute_s += ready.compute_s
        tally.wait_s += ready.wait_s
        self.pushed_bytes += pushed_bytes
        self.pulled_bytes += ready.pulled_bytes

    def refuse(self, worker: int) -> None:
        """A worker's gradient was refused."""
        self.refused += 1
        self.of(worker).refused += 1

    def folded(self, num_samples: int, stalenesses: list[int], now_s: float, *, pace: str) -> None:
        """An update was made of so many samples, its members so stale, under `pace`."""
        self.samples += num_samples
        self.updates += 1
        self.paces[pace] = self.paces.get(pace, 0) + num_samples
        self.last_s = now_s
        counts = self.stalenesses
        for tau in stalenesses:
            counts[tau] = counts.get(tau, 0) + 1

    def undo(self, num_samples: int, *, booked: int) -> None:
        """A Restore took so many samples back; `booked` of them are of epochs that were settled."""
        old = self.ledgers
        self.ledgers = old._replace(once=old.once - booked, undone=old.undone + num_samples)

    def settle(self, *, folded: int, repeated: int, skipped: int) -> None:
        """An epoch is over (or given up)."""
        old, repeated = self.ledgers, min(repeated, folded)
        self.ledgers = Ledgers(old.once + folded - repeated, old.repeated + repeated, old.skipped + skipped, old.undone)

    def mean_staleness(self) -> float:
        """The mean over all folded gradients."""
        return sum(tau * times for tau, times in self.stalenesses.items()) / max(1, sum(self.stalenesses.values()))

    def staleness(self) -> dict[str, float]:
        """Mean, median, 99th percentile and maximum over all folded gradients."""
        count = sum(self.stalenesses.values())
        if not count:
            return {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}
        ordered = sorted(self.stalenesses.items())
        median, most = _quantile(ordered, count, 0.5), _quantile(ordered, count, 0.99)
        return {"mean": self.mean_staleness(), "p50": median, "p99": most, "max": ordered[-1][0]}

    def final(self) -> dict[str, float]:
        """The last value of every metric, from the lowest worker that was not lost."""
        last: dict[str, float] = {}
        for name, values in self._final.items():
            kept = [worker for worker in values if worker not in self.lost] or list(values)
            last[name] = values[min(kept)]
        return last

    def summary(self) -> dict[str, object]:
        """The books' part of `summary.json`; `wall_s` runs from the first lease to the last fold."""
        return {
            "samples": self.samples,
            "updates": self.updates,
            "wall_s": 0.0 if self.first_s is None or self.last_s is None else self.last_s - self.first_s,
            "final": self.final(),
            "staleness": self.staleness(),
            "per_worker": {
                str(number): {
                    "samples": one.samples,
                    "steps": one.steps,
                    "refused": one.refused,
                    "compute_s": one.compute_s,
                    "wait_s": one.wait_s,
                }
                for number, one in sorted(self.tallies.items())
            },
            "bytes": {"pushed": self.pushed_bytes, "pulled": self.pulled_bytes},
            "ledger": self.ledgers._asdict(),
            "uncounted": self.uncounted,
            "refused": self.refused,
            "moves": self.moves,
            "decisions": self.decisions,
            "restores": self.restores,
            "paces": self.paces,
            "lost": self.lost,
        }


def _quantile(ordered: list[tuple[int, int]], count: int, share: float) -> int:
    seen = 0
    for tau, times in ordered:
        seen += times
        if seen >= share * count:
            return tau
    return ordered[-1][0]
