"""A fold: which gradients make an update, in which order, with which weights."""

from __future__ import annotations

import msgspec

from paceline.logic.membership import Worker
from paceline.logic.weighting import weight_of
from paceline.messages import Fold, Member
from paceline.pace import Correction, Pace


class Pending(msgspec.Struct, order=True):
    """An accepted gradient until its fold. `hyper` are its worker's settings; `omega` is there when it was gathered.

    A gathered gradient lies in the accumulators already, so its weight is final. Ordered by name.
    """

    worker: int
    incarnation: int
    step: int
    buffer: int
    samples: int
    base: int
    positions: tuple[int, ...]
    absent: bytes
    hyper: bytes
    clip: float
    buffer_samples: int
    owner: Worker
    norm: float = 0.0
    omega: float | None = None


class Weighed(msgspec.Struct, frozen=True):
    """What was pending in the order of the fold, as `members`, and their stalenesses; `scale` multiplies their sum."""

    pending: list[Pending]
    members: tuple[Member, ...]
    stalenesses: list[int]
    num_samples: int
    scale: float
    lr_factor: float


def gathered_member(one: Pending, staleness: int) -> Member:
    """The member that enters the accumulator before its fold is known: its weight is n * omega, its staleness final."""
    assert one.omega is not None
    return Member(one.worker, one.incarnation, one.step, one.buffer, one.samples * one.omega, False, one.buffer_samples, staleness)


def weigh(pace: Pace, pending: list[Pending], *, version: int, num_live: int, scales_gradients: bool, is_scaled: bool = False) -> Weighed:
    """The fold of everything `pending` into update `version`, with `num_live` workers.

    For SGD the gradient is sum_j (n_j / sum n) * omega(tau_j) * g_j. Others do not feel a gradient's length: their
    members get relative weights, and the mean omega multiplies the learning rate. Members are in the order of
    worker ids for distinct paces, else of acceptance. Gathered members were added with n_j * omega_j, so the
    whole sum is scaled afterwards. `is_scaled`: so is that of the others, whose weights are then known before the fold is.
    """
    ordered = sorted(pending) if pace.distinct else pending
    stalenesses: list[int] = []
    raw: list[float] = []
    num_samples, weighed = 0, 0.0
    for one in ordered:
        tau = version - 1 - one.base
        stalenesses.append(tau)
        weight = one.samples * (weight_of(pace, tau, num_live=num_live) if one.omega is None else one.omega)
        raw.append(weight)
        weighed += weight
        num_samples += one.samples
    divisor = num_samples if scales_gradients else weighed
    # gathered members come before any other, and a fold with one of them is scaled as a whole
    divided, scale = (divisor, 1.0) if ordered[0].omega is None and not is_scaled else (1, 1.0 / divisor)
    members: list[Member] = []
    for one, weight, tau in zip(ordered, raw, stalenesses, strict=True):
        gathered = one.omega is not None
        members.append(Member(one.worker, one.incarnation, one.step, one.buffer, weight / divided, gathered, one.buffer_samples, tau))
    return Weighed(ordered, tuple(members), stalenesses, num_samples, scale, 1.0 if scales_gradients else weighed / num_samples)


def needs_factor(fold: Fold, correction: Correction) -> bool:
    """Whether an update is applied only when all have reported: it is voted on, clipped, or bounded and stale."""
    return fold.votes or fold.clip > 0.0 or (correction.rule == "bound" and any(member.staleness for member in fold.members))


def absent_in_all(masks: list[bytes]) -> bytes:
    r"""The bitmap of what is absent in every member; empty when nothing is.

    >>> absent_in_all([b"\x06", b"\x03"]), absent_in_all([b"\x06", b""])
    (b'\x02', b'')
    """
    if not all(masks):
        return b""
    common = int.from_bytes(masks[0], "little")
    for mask in masks[1:]:
        common &= int.from_bytes(mask, "little")
    return common.to_bytes(len(masks[0]), "little") if common else b""
