"""A fold: which gradients make an update, in which order, with which weights."""

from __future__ import annotations

from typing import NamedTuple

from paceline.logic.membership import Worker
from paceline.logic.weighting import omega
from paceline.messages import Member
from paceline.pace import Pace


class Pending(NamedTuple):
    """An accepted gradient until its fold. `hyper` are its worker's settings; `omega` is there when it was gathered.

    A gathered gradient lies in the accumulators already, so its weight is final.
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
    omega: float | None = None


class Weighed(NamedTuple):
    """The members in order with their weights and stalenesses; `scale` multiplies their sum."""

    members: tuple[Member, ...]
    stalenesses: tuple[int, ...]
    scale: float
    lr_factor: float


def gathered_member(one: Pending) -> Member:
    """The member that enters the accumulator before its fold is known: its weight is n * omega."""
    assert one.omega is not None
    return Member(one.worker, one.incarnation, one.step, one.buffer, one.samples * one.omega, False, one.buffer_samples)


def weigh(pace: Pace, pending: list[Pending], *, version: int, scales_gradients: bool) -> Weighed:
    """The fold of everything `pending` into update `version`.

    For SGD the gradient is sum_j (n_j / sum n) * omega(tau_j) * g_j. Others do not feel a gradient's length: their
    members get relative weights, and the mean omega multiplies the learning rate. Members are in the order of
    worker ids for distinct paces, else of acceptance. Gathered members were added with n_j * omega_j, so the
    whole sum is scaled afterwards.
    """
    ordered = sorted(pending) if pace.distinct else pending
    weighting, newest = pace.weighting, version - 1
    stalenesses = tuple([newest - one.base for one in ordered])
    num_samples, weighed = 0, 0.0
    raw: list[float] = []
    for one in ordered:
        factor = omega(weighting, newest - one.base) if one.omega is None else one.omega
        num_samples += one.samples
        weighed += one.samples * factor
        raw.append(one.samples * factor)
    divisor = num_samples if scales_gradients else weighed
    scale = 1.0
    # gathered members come before any other, and a fold with one of them is scaled as a whole
    if ordered[0].omega is None:
        raw = [weight / divisor for weight in raw]
    else:
        scale = 1.0 / divisor
    members = tuple(
        [
            Member(one.worker, one.incarnation, one.step, one.buffer, weight, one.omega is not None, one.buffer_samples)
            for one, weight in zip(ordered, raw, strict=True)
        ]
    )
    return Weighed(members, stalenesses, scale, 1.0 if scales_gradients else weighed / num_samples)


def absent_in_all(masks: list[bytes]) -> bytes:
    """The bitmap of what is absent in every member; empty when nothing is.

    >>> absent_in_all([b"\\x06", b"\\x03"]), absent_in_all([b"\\x06", b""])
    (b'\\x02', b'')
    """
    if not all(masks):
        return b""
    common = int.from_bytes(masks[0], "little")
    for mask in masks[1:]:
        common &= int.from_bytes(mask, "little")
    return common.to_bytes(len(masks[0]), "little") if common else b""
