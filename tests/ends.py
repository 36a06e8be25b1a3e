"""The laws of a world that has ended, from what its shards hold rather than from what the coordinator says."""

from __future__ import annotations

from collections import Counter

from laws import Referee, require
from routines import Data, Habits, noticed
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


def samples_applied(world: World) -> dict[int, Counter[int]]:
    """How often each entry of each epoch's batch list is in an applied gradient, by the servers' own books."""
    counts: dict[int, Counter[int]] = {}
    for members, _ in world.stores[0].history:
        for name, _ in members:
            content = world.contents[name]
            counts.setdefault(content.epoch, Counter()).update(content.positions)
    return counts


def check_ranges(world: World, num_samples: int) -> None:
    """With a list of samples: what was applied of each epoch does not overlap and leaves nothing out."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for members, _ in world.stores[0].history:
        for name, _ in members:
            content = world.contents[name]
            ranges.setdefault(content.epoch, []).extend(content.ranges)
    for epoch, parts in ranges.items():
        parts.sort()
        borders = [0, *(stop for _, stop in parts)]
        whole = [start for start, _ in parts] == borders[:-1] and borders[-1] == num_samples
        require(whole, f"epoch {epoch}: the ranges {parts} were applied")


def check_samples(world: World, data: Data, num_epochs: int, habits: Habits) -> None:
    """Each entry of each epoch once; with `may_skip` at most once; the summary says the same."""
    counts = samples_applied(world)
    may_skip = bool(habits.breaks_after or habits.poison or habits.stops_at or habits.accumulate > 1 or habits.unlucky)
    folded = sum(world.contents[name].samples for members, _ in world.stores[0].history for name, _ in members)
    for epoch in range(num_epochs):
        seen = counts.get(epoch, Counter())
        require(set(seen.values()) <= {1}, f"epoch {epoch}: an entry was applied more than once: {seen}")
        if not may_skip and not data.cut:
            require(set(seen) == set(range(len(data.sizes))), f"epoch {epoch}: applied are {sorted(seen)} of {len(data.sizes)}")
        if not may_skip and data.cut:
            check_ranges(world, sum(data.sizes))
        if habits.poison:
            require(not set(seen) & set(habits.poison), f"epoch {epoch}: a poisoned entry was applied")
    total = sum(data.sizes) * num_epochs
    books = world.coordinator.job.accounts
    require(books.samples == folded, f"the books say {books.samples} samples, the shards {folded}")
    if not may_skip:
        require(folded == total, f"{folded} samples of {total} were applied")
    if not habits.stops_at:
        require(books.ledgers.once + books.ledgers.skipped == total, f"{books.ledgers} do not make {total}")
    require(books.ledgers.once == folded, f"{books.ledgers} against {folded} applied")
