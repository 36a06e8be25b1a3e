"""The laws of a world that has ended, from what its shards hold rather than from what the coordinator says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from laws import Referee, require
from routines import Data, Habits, noticed
from stores import Name
from world import World


def check_end(world: World, referee: Referee) -> None:
    """What holds when a job has ended well: all shards alike, each gradient once, one version at each end of an epoch."""
    histories = [world.stores[shard].history for shard in sorted(world.stores)]
    for history in histories:
        require(len(history) == world.coordinator.job.version, f"a shard is at version {len(history)} of {world.coordinator.job.version}")
        require(history == histories[0], "shards made different updates")
    applied = Counter(name for members, _ in histories[0] for name, _ in members)
    require(set(applied.values()) <= {1}, f"applied more than once: {applied.most_common(3)}")
    require(set(applied) == set(referee.folded), "what was applied is not what was ordered")
    require(not referee.pending, f"never answered: {referee.pending}")
    require(set(referee.arrived) == set(applied) | set(referee.refused), "a gradient was neither applied nor refused")
    for shard, store in world.stores.items():
        require(not store.attached, f"shard {shard} has still mapped the memory of {store.attached}")
    if any(event["event"] == "load" for event in world.events):
        return  # a load is a version too, and those that come to the end of an epoch after it read that one
    for epoch, versions in noticed(world).items():
        require(len({version for each in versions for version in each}) == 1, f"at the end of epoch {epoch} workers hold {versions}")


def in_force(world: World) -> list[Name]:
    """The gradients of all updates, without those that a Restore made undone."""
    store = world.stores[0]
    undone = {at for made, back_to in store.restores for at in range(back_to, made)}
    return [name for at, (members, _) in enumerate(store.history) if at not in undone for name, _ in members]


def samples_applied(world: World) -> dict[int, Counter[int]]:
    """How often each entry of each epoch's batch list is in a gradient that counts, by the servers' own books."""
    counts: dict[int, Counter[int]] = {}
    for name in in_force(world):
        content = world.contents[name]
        counts.setdefault(content.epoch, Counter()).update(content.positions)
    return counts


def lost_by_restores(world: World, referee: Referee) -> dict[int, int]:
    """Samples of each epoch that were undone when another one had begun: nobody computes them again."""
    lost: dict[int, int] = {}
    for epoch, names in referee.restored:
        for name in names:
            content = world.contents[name]
            if content.epoch != epoch:
                lost[content.epoch] = lost.get(content.epoch, 0) + content.samples
    return lost


def check_ranges(world: World, num_samples: int, lost: dict[int, int]) -> None:
    """With a list of samples: what was applied of each epoch does not overlap and leaves nothing out but what was lost."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for name in in_force(world):
        content = world.contents[name]
        ranges.setdefault(content.epoch, []).extend(content.ranges)
    for epoch, parts in ranges.items():
        parts.sort()
        borders = [0, *(stop for _, stop in parts)]
        apart = all(stop <= start for (_, stop), (start, _) in pairwise(parts))
        whole = [start for start, _ in parts] == borders[:-1] and borders[-1] == num_samples
        require(
            apart and (whole or sum(stop - start for start, stop in parts) == num_samples - lost.get(epoch, 0)),
            f"epoch {epoch}: the ranges {parts} were applied",
        )


def check_samples(world: World, referee: Referee, data: Data, num_epochs: int, habits: Habits) -> None:
    """Each entry of each epoch once; with `may_skip` at most once; the summary says the same."""
    counts, lost = samples_applied(world), lost_by_restores(world, referee)
    may_skip = bool(habits.breaks_after or habits.poison or habits.stops_at or habits.accumulate > 1 or habits.unlucky)
    folded = sum(world.contents[name].samples for members, _ in world.stores[0].history for name, _ in members)
    standing = sum(world.contents[name].samples for name in in_force(world))
    for epoch in range(num_epochs):
        seen = counts.get(epoch, Counter())
        require(set(seen.values()) <= {1}, f"epoch {epoch}: an entry was applied more than once: {seen}")
        if not may_skip and not data.cut:
            missing = sum(data.sizes[at] for at in range(len(data.sizes)) if at not in seen)
            require(missing == lost.get(epoch, 0), f"epoch {epoch}: applied are {sorted(seen)} of {len(data.sizes)}, lost {lost}")
        if habits.poison:
            require(not set(seen) & set(habits.poison), f"epoch {epoch}: a poisoned entry was applied")
    if not may_skip and data.cut:
        check_ranges(world, sum(data.sizes), lost)
    total, away = sum(data.sizes) * num_epochs, sum(lost.values())
    books = world.coordinator.job.accounts
    require(books.samples == folded, f"the books say {books.samples} samples, the shards {folded}")
    require(books.ledgers.undone == folded - standing, f"{books.ledgers}: the shards undid {folded - standing}")
    if not may_skip:
        require(standing == total - away, f"{standing} samples of {total} were applied, {away} were lost")
    if not habits.stops_at:
        require(books.ledgers.once + books.ledgers.skipped == total - away, f"{books.ledgers} do not make {total - away}")
    require(books.ledgers.once == standing, f"{books.ledgers} against {standing} applied")
