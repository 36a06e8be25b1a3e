"""A fold: which gradients make an update, in which order, with which weights."""

from __future__ import annotations

from typing import NamedTuple

from paceline.logic.weighting import omega
from paceline.messages import Member
from paceline.pace import Pace


class Pending(NamedTuple):
    """An accepted gradient until its fold. `omega` is final for gathered ones, None until the fold otherwise."""

    worker: int
    incarnation: int
    step: int
    buffer: int
    samples: int
    base: int
    positions: tuple[int, ...]
    absent: bytes
    clip: float
    buffer_samples: int
    gathered: bool = False
    omega: float | None = None


class Weighed(NamedTuple):
    """The members in order with their weights and stalenesses; `scale` multiplies their sum."""

    members: tuple[Member, ...]
    stalenesses: tuple[int, ...]
    scale: float
    lr_factor: float


def gathered_weight(pending: Pending, factor: float) -> float:
    """The weight with which a gradient enters the accumulator before its fold is known: n * omega."""
    return pending.samples * factor


def weigh(pace: Pace, pending: list[Pending], *, version: int, scales_gradients: bool) -> Weighed:
    """The fold of everything `pending` into update `version`.

    For SGD the gradient is sum_j (n_j / sum n) * omega(tau_j) * g_j. Others do not feel a gradient's length: their
    members get relative weights, and the mean omega multiplies the learning rate. Members are in the order of
    worker ids for distinct paces, else of acceptance. Gathered members were added with n_j * omega_j, so the
    whole sum is scaled afterwards.
    """
    ordered = sorted(pending) if pace.distinct else pending
    stalenesses = tuple(version - 1 - one.base for one in ordered)
    omegas = [omega(pace.weighting, tau) if one.omega is None else one.omega for one, tau in zip(ordered, stalenesses, strict=True)]
    raw = [one.samples * factor for one, factor in zip(ordered, omegas, strict=True)]
    num_samples, weighed = sum(one.samples for one in ordered), sum(raw)
    divisor = num_samples if scales_gradients else weighed
    any_gathered = any(one.gathered for one in ordered)
    members = tuple(
        Member(one.worker, one.incarnation, one.step, one.buffer, weight if any_gathered else weight / divisor, one.gathered, one.buffer_samples)
        for one, weight in zip(ordered, raw, strict=True)
    )
    return Weighed(members, stalenesses, 1.0 / divisor if any_gathered else 1.0, 1.0 if scales_gradients else weighed / num_samples)


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
