"""All hosts of a launch looked at: each says what it is, then they visit each other in rounds of disjoint pairs.

The first process of each host takes part, the others only say that they are there. Rank 0 leads: it says who is in the next
round, gathers what was found, and says how it ended. All of that stands on the launcher's board, under the job's key.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic

import msgspec

from paceline.engine.torchrun.board import Board, understood
from paceline.engine.torchrun.launch import Launch
from paceline.errors import DeadlineError, PacelineError, PeerLostError, ProtocolError
from paceline.plan.doctor.advice import advice_for
from paceline.plan.doctor.doors import Doors
from paceline.plan.doctor.facts import Facts
from paceline.plan.doctor.findings import Card, Host, Report, SampleTime, Visit
from paceline.plan.doctor.visiting import Visitor
from paceline.plan.machine import Machine
from paceline.plan.speed import Clock
from paceline.transport.trust import Trust

ROUND_S = 30.0
"""How long a pair may take for its round; it is half a second where all addresses answer."""
GOODBYE_S = 5.0

Measure = Callable[[], tuple[Machine, SampleTime | None]]
"""The machine, and how long a sample of a script takes on it."""


def nothing() -> None:
    """Where rank 0 has nothing to look at before anything is measured."""


class Leaflet(msgspec.Struct, frozen=True):
    """What rank 0 says before a round: the first ranks of the hosts, of which pairs are made, and of those that were lost since."""

    ranks: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """How it ended."""

    is_well: bool


def pairs_of(ranks: Sequence[int], number: int) -> list[tuple[int, int]]:
    """The pairs of round `number`; over the rounds 0, 1, ... everybody meets everybody once (the circle method).

    >>> pairs_of([0, 1, 2, 3], 0), pairs_of([0, 1, 2, 3], 1), pairs_of([0, 1, 2], 0)
    ([(0, 3), (1, 2)], [(0, 1), (2, 3)], [(1, 2)])
    """
    seats: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    seats = [*seats[:1], *seats[1 + number :], *seats[1 : 1 + number]]
    facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
    return sorted((min(one, other), max(one, other)) for one, other in facing if one is not None and other is not None)


def num_rounds(num_hosts: int) -> int:
    """Until everybody has met everybody."""
    return max(0, num_hosts - 1 + num_hosts % 2)


class Checkup:
    """One process's part in it. `patience_s` is how long the others may take to come; `clock` tells the time of day."""

    def __init__(self, launch: Launch, facts: Facts, trust: Trust, *, patience_s: float, clock: Clock) -> None:
        self._launch, self._facts, self._trust = launch, facts, trust
        self._patience_s, self._clock = patience_s, clock
        self._board = Board(launch, trust, awaited="take part in the checkup", open_s=max(1.0, patience_s))
        self._cards: dict[int, Card] = {}
        self._doubtful: set[int] = set()
        self._visits: list[Visit] = []
        self._lost: dict[int, str] = {}

    def run(self, measure: Measure, prepare: Callable[[], None] = nothing) -> Report | None:
        """Take part to the end; `measure` is called in the first process of each host, once rank 0 has called `prepare`.

        Rank 0 gets the report, the others None when all is well. Raises PacelineError when it is not.
        """
        rank = self._launch.rank
        self._begin(prepare)
        if self._launch.local_rank:
            self._write_card(self._card())
            return self._hear_verdict()
        machine, sample = measure()
        doors = Doors(rank, self._facts.addresses, self._trust, self._clock, first_port=self._facts.first_port)
        try:
            self._write_card(msgspec.structs.replace(self._card(doors), machine=machine, sample=sample))
            if rank == 0:
                return self._lead()
            if self._is_of_rank_0():
                self._follow()
            return self._hear_verdict()
        finally:
            doors.close()

    def _begin(self, prepare: Callable[[], None]) -> None:
        """What keeps rank 0 from it is told to all before they measure anything."""
        try:
            if self._launch.rank == 0:
                prepare()
                self._board.write("begin", b"")
            else:
                # signed by this job's key or not: of another key it is told later
                self._board.peek("begin", "rank 0", self._patience_s + ROUND_S)
        except PacelineError as error:
            self._board.tell_trouble(str(error))
            raise

    def _write_card(self, card: Card) -> None:
        self._cards[card.rank] = card
        self._board.write(f"card/{card.rank}", msgspec.json.encode(card))

    def _card(self, doors: Doors | None = None) -> Card:
        facts = self._facts
        if doors is not None and doors.errors and not facts.place_error:
            facts = msgspec.structs.replace(facts, place_error=doors.errors[0])
        open_doors = tuple(doors.doors) if doors is not None else ()
        return Card(self._launch.rank, self._launch.local_rank, facts, self._fingerprint(), open_doors)

    def _fingerprint(self) -> str:
        if not self._trust.secret:
            return ""
        return hmac.digest(self._trust.secret, f"paceline fingerprint {self._launch.attempt}".encode(), "sha256").hex()[:16]

    # --- rank 0 -------------------------------------------------------------------------------------------

    def _lead(self) -> Report:
        missing = self._gather()
        firsts = [card for card in self._cards.values() if not card.local_rank]
        ranks = tuple(card.rank for card in firsts if card.doors and card.rank not in self._doubtful)
        for number in range(num_rounds(len(ranks))):
            self._board.write(f"round/{number}", msgspec.json.encode(Leaflet(ranks, tuple(self._lost))))
            self._conduct(number, [pair for pair in pairs_of(ranks, number) if not set(pair) & set(self._lost)])
        self._board.write(f"round/{num_rounds(len(ranks))}", msgspec.json.encode(Leaflet()))
        hosts = tuple(self._host(card, firsts) for card in firsts)
        report = Report(self._launch.because, hosts, tuple(self._visits), tuple(missing))
        report = msgspec.structs.replace(report, advice=tuple(advice_for(report)))
        self._board.write("verdict", msgspec.json.encode(Verdict(report.is_well)))
        self._see_off()
        return report

    def _gather(self) -> list[int]:
        """Every card that comes in time; returns whose did not."""
        missing: list[int] = []
        deadline_s = monotonic() + self._patience_s
        for rank in range(self._launch.world_size):
            try:
                note, is_ours = self._board.peek(f"card/{rank}", f"rank {rank}", max(0.05, deadline_s - monotonic()))
            except DeadlineError:
                missing.append(rank)
                continue
            if not is_ours:
                self._doubtful.add(rank)
            self._cards[rank] = _card_of(note, rank)
        return missing

    def _conduct(self, number: int, pairs: Sequence[tuple[int, int]]) -> None:
        """One round: take part in it, and hear of everybody else in it."""
        mine = next((pair for pair in pairs if 0 in pair), None)
        if mine is not None:
            self._meet(number, mine)
        # the second of a pair visits when the first has been
        deadline_s = monotonic() + 2 * ROUND_S
        for pair in pairs:
            for rank in pair:
                self._hear_of(number, rank, pair, max(0.05, deadline_s - monotonic()))

    def _hear_of(self, number: int, rank: int, pair: tuple[int, int], timeout_s: float) -> None:
        other = pair[0] if rank == pair[1] else pair[1]
        try:
            self._visits.append(self._found(number, rank, timeout_s))
        except DeadlineError:
            # who waits for one that is lost is late as well
            if not {rank, other} & set(self._lost):
                self._lost[rank] = f"it said nothing of its visit to rank {other} within {2 * ROUND_S:g} s"

    def _host(self, card: Card, firsts: Sequence[Card]) -> Host:
        """A host by its first process; the others there are those of the same name up to the next first one of that name."""
        ends = [one.rank for one in firsts if one.facts.name == card.facts.name and one.rank > card.rank]
        end = min(ends, default=self._launch.world_size)
        num_processes = sum(one.facts.name == card.facts.name and card.rank <= one.rank < end for one in self._cards.values())
        is_ours = card.rank not in self._doubtful and card.fingerprint == self._cards[0].fingerprint
        return Host(card.rank, num_processes, card.facts, is_ours, card.machine, self._lost.get(card.rank, ""), card.sample)

    def _see_off(self) -> None:
        """The store may be this process's own, so it stays until the others have read it, or have had the time."""
        deadline_s = monotonic() + GOODBYE_S
        for rank in self._cards:
            if rank and rank not in self._lost:
                try:
                    self._board.peek(f"bye/{rank}", f"rank {rank}", max(0.01, deadline_s - monotonic()))
                except PacelineError:
                    continue

    # --- everybody ----------------------------------------------------------------------------------------

    def _is_of_rank_0(self) -> bool:
        """Whether this process and rank 0 have the same key: who has not is told of, and visits nobody."""
        note, is_ours = self._board.peek("card/0", "rank 0", self._patience_s + ROUND_S)
        self._cards[0] = _card_of(note, 0)
        return is_ours and bool(self._cards[self._launch.rank].doors)

    def _follow(self) -> None:
        for number in count():
            timeout_s = self._patience_s + ROUND_S if number == 0 else 4 * ROUND_S
            leaflet = understood(self._board.read(f"round/{number}", "rank 0", timeout_s), Leaflet, 0)
            if not leaflet.ranks:
                return
            for pair in pairs_of(leaflet.ranks, number):
                if self._launch.rank in pair and not set(pair) & set(leaflet.lost):
                    self._meet(number, pair)

    def _card_from(self, rank: int, timeout_s: float) -> Card:
        return _card_of(self._board.read(f"card/{rank}", f"rank {rank}", timeout_s), rank)

    def _meet(self, number: int, pair: tuple[int, int]) -> None:
        """Visit the other one of the pair, the lower rank first, and write down what was found."""
        first, second = pair
        me, other = (first, second) if self._launch.rank == first else (second, first)
        card = self._cards.get(other) or self._card_from(other, ROUND_S)
        if me == second:
            try:
                self._found(number, first, ROUND_S)
            except DeadlineError as error:
                # it may be visited nevertheless, and rank 0 tells of its silence
                self._write(number, Visit(me, other, error=str(error)))
                return
        self._write(number, Visitor(me, self._trust, self._clock).visit(other, card.doors, card.facts.advertised))

    def _found(self, number: int, rank: int, timeout_s: float) -> Visit:
        return understood(self._board.read(f"found/{number}/{rank}", f"rank {rank}", timeout_s), Visit, rank)

    def _write(self, number: int, visit: Visit) -> None:
        self._board.write(f"found/{number}/{visit.visitor}", msgspec.json.encode(visit))

    def _hear_verdict(self) -> None:
        rank = self._launch.rank
        try:
            # rank 0 waits for whoever is late, and for the rounds
            timeout_s = self._patience_s + 2 * ROUND_S * (2 + num_rounds(self._launch.world_size))
            note, is_ours = self._board.peek("verdict", "rank 0", timeout_s)
        finally:
            with suppress(PeerLostError):
                self._board.write(f"bye/{rank}", b"")
        if not is_ours:
            raise PacelineError(f"rank {rank} does not have the key of rank 0: PACELINE_KEY_FILE must name the same key on every host")
        if not understood(note, Verdict, 0).is_well:
            raise PacelineError("something will not work, rank 0 has printed what")


def _card_of(note: bytes, rank: int) -> Card:
    """What a process has written, as far as this version understands it."""
    try:
        card = understood(note, Card, rank)
    except ProtocolError:
        return Card(rank, facts=Facts(name=f"rank {rank}", paceline="a version that describes itself differently"))
    if card.rank != rank:
        raise ProtocolError(f"rank {rank} says that it is rank {card.rank}")
    return card
