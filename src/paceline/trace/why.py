"""Why a run moved its pace: decisions.jsonl read back as a story, and the one decision that was in force at some moment.

Every number that is told stands in the line it is told of. A torn last line is what a crash leaves; any other damage is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.errors import ConfigError
from paceline.logic.sentence import NUMBER, written
from paceline.trace.record import DECISIONS, each_decision, each_event, read_summary


class Weighed(msgspec.Struct, frozen=True):
    """A candidate as it is written down."""

    pace: str
    samples_per_s: float | None
    efficiency: float | None
    goodput: float | None
    staleness: float | None = None


class Decided(msgspec.Struct, frozen=True):
    """An evaluation of the policy: what it was given, what it said, and what kept it from being done (`held`)."""

    t_s: float
    number: int
    policy: str
    samples: int
    version: int
    pace: str
    why: str
    share: float | None = None
    next: str | None = None
    moved: bool = False
    held: str = ""
    inputs: dict[str, float | None] = {}
    signals: dict[str, Any] = {}
    candidates: tuple[Weighed, ...] = ()
    predicted: float | None = None
    leads: tuple[tuple[int, int], ...] = ()
    shares: tuple[tuple[int, float], ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """What came of the prediction of decision `number`, in samples a second."""

    number: int
    came: float | None


class Restored(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A move that was taken back."""

    t_s: float
    samples: int
    version: int
    before: str
    after: str
    why: str
    share: float | None = None
    inputs: dict[str, float | None] = {}


class Told(NamedTuple):
    """A change of pace: when and what, the reason, and what was predicted and came (empty when nothing was)."""

    head: str
    why: str
    rates: str


class Held(NamedTuple):
    """What kept decisions from being done: how often, and the last of them."""

    times: int
    last: Decided


class Story(NamedTuple):
    """A run's decisions: its policy, how often it was asked, the changes in order, what was held back, how often what was set."""

    policy: str
    num_asked: int
    moves: tuple[Told, ...]
    num_restored: int
    held: tuple[Held, ...]
    num_leads: int
    num_shares: int


_KINDS: dict[str, type[Decided | Outcome | Restored]] = {"decision": Decided, "outcome": Outcome, "restore": Restored}


def read_decisions(run_dir: Path) -> Iterator[Decided | Outcome | Restored]:
    """The lines of decisions.jsonl in order, those of a kind that is not known left out.

    Raises ConfigError when `run_dir` is no run, has no decisions, or a line is damaged.
    """
    number = 0
    for number, row in enumerate(each_decision(run_dir), start=1):
        event = row.get("event")
        kind = _KINDS.get(event) if isinstance(event, str) else None
        if kind is not None:
            try:
                yield msgspec.convert(row, kind)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{run_dir / DECISIONS}, line {number}, is damaged: {error}") from None
    if not number:
        raise ConfigError(f"{run_dir} has no decisions: its pace was not a policy's, or it ended before one was asked")


# --- the story --------------------------------------------------------------------------------------------


def story_of(run_dir: Path) -> Story:
    """What the run's policy did and why. Raises ConfigError as `read_decisions`."""
    changes: list[Decided | Restored] = []
    outcomes: dict[int, Outcome] = {}
    held: dict[str, Held] = {}
    policy, num_asked, num_leads, num_shares = "", 0, 0, 0
    for line in read_decisions(run_dir):
        match line:
            case Decided():
                policy, num_asked = line.policy, num_asked + 1
                num_leads, num_shares = num_leads + bool(line.leads), num_shares + bool(line.shares)
                if line.moved:
                    changes.append(line)
                if line.held:
                    kind = NUMBER.sub("#", line.held)
                    held[kind] = Held(held[kind].times + 1 if kind in held else 1, line)
            case Outcome():
                outcomes[line.number] = line
            case Restored():
                changes.append(line)
    told = tuple(_told(change, outcomes) for change in changes)
    num_restored = sum(isinstance(change, Restored) for change in changes)
    ordered = tuple(sorted(held.values(), key=lambda one: -one.times))
    return Story(policy, num_asked, told, num_restored, ordered, num_leads, num_shares)


def _told(change: Decided | Restored, outcomes: dict[int, Outcome]) -> Told:
    if isinstance(change, Restored):
        return Told(f"{moment(change)}: back from {change.before} to {change.after}", change.why, "")
    head = f"{moment(change)}: from {change.pace} to {change.next}"
    return Told(head, change.why, _rates(change, outcomes.get(change.number)))


def _rates(change: Decided, outcome: Outcome | None) -> str:
    """What was predicted for a move, and what came of it."""
    if change.predicted is None:
        return ""
    came = outcome.came if outcome is not None else None
    after = f"{written(came)} came" if came is not None else "what came was not measured"
    return f"predicted {written(change.predicted)} samples/s, {after}"


def moment(line: Decided | Restored) -> str:
    """When it was, on the sample clock.

    >>> moment(Restored(1.0, 12800, 400, "async", "sync", "", 0.125))
    'at 12,800 samples, 12.5 % of the work'
    """
    share = "" if line.share is None else f", {written(100.0 * line.share)} % of the work"
    return f"at {line.samples:,} samples{share}"


# --- one decision -----------------------------------------------------------------------------------------


class InForce(NamedTuple):
    """The last evaluation at some moment, and the change that had brought the pace; None: the run began with it."""

    decision: Decided
    change: Told | None


def decision_at(run_dir: Path, samples: int) -> InForce:
    """What was in force at `samples`. Raises ConfigError as `read_decisions`, and for a moment outside of the run."""
    found: Decided | None = None
    change: Decided | Restored | None = None
    for line in read_decisions(run_dir):
        if isinstance(line, Outcome):
            continue
        if line.samples > samples:
            break
        found = line if isinstance(line, Decided) else found
        change = line if isinstance(line, Restored) or line.moved else change
    else:
        _check_end(run_dir, samples)
    if found is None:
        raise ConfigError(f"nothing was decided in {run_dir} by {samples:,} samples; `paceline why {run_dir}` tells when")
    return InForce(found, None if change is None else _told(change, {}))


def _check_end(run_dir: Path, samples: int) -> None:
    """Raise ConfigError when the run has no such moment: by its summary, or by its events when it has none."""
    end = read_summary(run_dir).get("samples")
    if not isinstance(end, int):
        reached = (event.get("samples") for event in each_event(run_dir) if event.get("event") == "update")
        end = max((one for one in reached if isinstance(one, int)), default=0)
    if samples > end:
        raise ConfigError(f"--at: {samples:,} samples are beyond the end of {run_dir}, it must be 0 to {end:,}")
