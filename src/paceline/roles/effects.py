"""What a role wants done. Roles return these values; engines carry them out, in order."""

from __future__ import annotations

from typing import NamedTuple

from paceline.hybrid import Hybrid
from paceline.logic.partition import LEAST_SHARD_BYTES
from paceline.logic.policies.policy import Move
from paceline.logic.signals import Signals
from paceline.messages import Address, Message
from paceline.pace import LrRule, Pace
from paceline.settings import Route, Shares


class Send(NamedTuple):
    """Hand `message` to `to`; `attachments` are opaque handles that the engine knows how to pass on."""

    to: Address
    message: Message
    attachments: tuple[object, ...] = ()


class Note(NamedTuple):
    """One line of `events.jsonl`, without its time."""

    event: dict[str, object]


class Metrics(NamedTuple):
    """What a worker's script logged, placed on the run's sample clock."""

    worker: int
    metrics: dict[str, float]
    epoch: int
    samples: int
    weight: int


class Warn(NamedTuple):
    """A sentence for the user that ends nothing."""

    sentence: str


class Decide(NamedTuple):
    """One line of `decisions.jsonl`, without its time: an evaluation of the policy, or what came of a move."""

    record: dict[str, object]


class Consult(NamedTuple):
    """Ask the user's own policy; the answer goes to `Coordinator.advised` with this `number`, late or not."""

    number: int
    signals: Signals
    history: tuple[Move, ...]


class End(NamedTuple):
    """The job is over: `code` is its exit code, `sentence` the reason (empty when all went well)."""

    code: int
    sentence: str


Effect = Send | Note | Metrics | Warn | Decide | Consult | End


class JobSettings(NamedTuple):
    """What the coordinator has to know about the job; the rest of the settings concerns others.

    `pace_is_open`: nobody chose a pace, so the script's own (`init(pace=...)`) decides. `servers_are_open`: nobody
    chose their number, so a small model takes fewer of them, each with `least_shard_bytes`; the others end at once if
    `workers_come_once`, since no worker that is started again will look for them. `hybrid` moves the pace, which begins
    with `pace`. `shares`: batches are cut in proportion to the workers' speed. `route` is how the updates of a
    sync pace are made.
    """

    num_workers: int
    num_servers: int
    pace: Pace
    pace_is_open: bool = False
    servers_are_open: bool = False
    least_shard_bytes: int = LEAST_SHARD_BYTES
    workers_come_once: bool = False
    lr_rule: LrRule | None = None
    patience_s: float = 60.0
    hybrid: Hybrid | None = None
    shares: Shares = "even"
    route: Route = "servers"
