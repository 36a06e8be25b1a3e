"""The batch list of an epoch: the user's own order, the same whoever draws it, and DistributedSampler's when it is fixed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import ProtocolError, UsageError
from paceline.roles.talk import Leased
from paceline.session.batches import unpack
from paceline.session.sampling import Rules, Sampling

EXACT, STATIC = Rules("exact", "per-worker", 3), Rules("static", "per-worker", 3)
GLOBAL, SPEED = Rules("exact", "global", 3, cuts=True), Rules("exact", "per-worker", 3, cuts=True)


class Numbers(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Halves(Sampler):
    """A batch sampler of the user's own, with an epoch: uneven batches."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        start, left = self.epoch, self.size
        while left:
            step = max(1, left // 2)
            yield [(start + i) % self.size for i in range(step)]
            start, left = start + step, left - step

    def __len__(self) -> int:
        return len(list(iter(self)))


def drawn(loader: DataLoader, rules: Rules, epoch: int = 0, seed: int = 0) -> list[list[int]]:
    split = Sampling(loader, seed).split(epoch, rules)
    listed = unpack(split.batches.pack())
    return [listed.indices(Leased(position, None)) for position in range(len(split.drawn.sizes))]  # type: ignore[misc]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 2, 11, 24, 25])
def test_static_leases_are_distributed_samplers_split(size: int, shuffle: bool, drop_last: bool) -> None:
    data, seed, epoch = Numbers(size), 5, 3
    loader = DataLoader(data, batch_size=4, shuffle=shuffle, drop_last=drop_last)
    sampling = Sampling(loader, seed)
    split = sampling.split(epoch, STATIC)
    listed = unpack(split.batches.pack())
    for rank in range(3):
        sampler = DistributedSampler(data, 3, rank, shuffle=shuffle, seed=seed)
        sampler.set_epoch(epoch)
        theirs = [batch.tolist() for batch in DataLoader(data, batch_size=4, sampler=sampler, drop_last=drop_last)]
        ours = [listed.indices(Leased(position, None)) for position, owner in enumerate(split.drawn.owners) if owner == rank]
        assert ours == theirs
        assert split.drawn.updates == sampling.num_updates(STATIC) == len(theirs)
    flat = listed.samples.tolist()
    assert split.drawn.repeated == len(flat) - len(set(flat))


LOADERS = [
    DataLoader(Numbers(20), 3, shuffle=True),
    DataLoader(Numbers(20), 3, drop_last=True),
    DataLoader(Numbers(7), batch_sampler=Halves(7)),
]


@pytest.mark.parametrize("loader", LOADERS)
def test_exact_leases_list_the_loaders_own_batches(loader: DataLoader) -> None:
    batches = drawn(loader, EXACT)
    assert batches == drawn(loader, EXACT)
    flat = [index for batch in batches for index in batch]
    assert len(set(flat)) == len(flat) == (18 if loader.drop_last else len(loader.dataset))  # type: ignore[arg-type]
    assert len(batches) == len(loader)
    assert Sampling(loader, 0).num_updates(EXACT) == -(-len(loader) // 3)
    assert Sampling(loader, 0).split(0, EXACT).drawn.owners == ()


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    loader = DataLoader(Numbers(50), 5, shuffle=True)
    orders = [drawn(loader, EXACT, epoch, seed) for epoch, seed in [(0, 0), (1, 0), (0, 7)]]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_a_given_generator_decides_the_order_not_the_runs_seed() -> None:
    def loader() -> DataLoader:
        return DataLoader(Numbers(50), 5, shuffle=True, generator=torch.Generator().manual_seed(42))

    used = loader()
    first = drawn(used, EXACT, 0, seed=1)
    sampling = Sampling(loader(), 2)
    sampling.split(4, EXACT)
    again = sampling.split(0, EXACT).batches.samples.tolist()
    assert [index for batch in first for index in batch] == again
    assert again == torch.randperm(50, generator=torch.Generator().manual_seed(42)).tolist()


def test_a_weighted_sampler_may_repeat_and_set_epoch_is_called() -> None:
    loader = DataLoader(Numbers(4), 2, sampler=WeightedRandomSampler([0.0, 0.0, 1.0, 0.0], 6))
    assert drawn(loader, EXACT) == [[2, 2], [2, 2], [2, 2]]
    assert drawn(DataLoader(Numbers(7), batch_sampler=Halves(7)), EXACT, epoch=2)[0] == [2, 3, 4]


def test_drawing_does_not_move_the_scripts_random_streams() -> None:
    class Careless(Sampler):
        def __iter__(self):
            yield from (random.randrange(9), int(np.random.randint(9)), int(torch.randint(9, ())))

    def streams() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]

    before = streams()
    loader = DataLoader(Numbers(9), 3, sampler=Careless())
    assert drawn(loader, EXACT, 1) == drawn(loader, EXACT, 1)
    drawn(DataLoader(Numbers(9), 3, shuffle=True), EXACT)
    assert streams() == before


def test_a_global_batch_is_one_list_to_be_cut() -> None:
    split = Sampling(DataLoader(Numbers(10), 4), 0).split(0, GLOBAL)
    assert (split.drawn.sizes, split.drawn.cut, split.drawn.updates) == ((10,), 4, 3)
    assert split.batches.indices(Leased(5, (2, 4))) == [2, 3]
    assert split.batches.size(Leased(5, (2, 4))) == 2


def test_a_global_batch_with_static_leases_is_cut_at_once() -> None:
    split = Sampling(DataLoader(Numbers(9), 4), 0).split(0, Rules("static", "global", 3, cuts=True))
    assert split.drawn.sizes == (2, 1, 1, 2, 1, 1, 1)
    assert split.drawn.owners == (0, 1, 2, 0, 1, 2, 0)
    assert (split.drawn.cut, split.drawn.updates) == (0, 3)


@pytest.mark.parametrize(("drop_last", "num_samples"), [(False, 26), (True, 24)])
def test_with_shares_a_sync_update_has_a_batch_for_each_worker_and_the_same_samples(drop_last: bool, num_samples: int) -> None:
    loader = DataLoader(Numbers(26), 4, shuffle=True, drop_last=drop_last)
    sampling = Sampling(loader, 0)
    split = sampling.split(0, SPEED)
    assert (split.drawn.sizes, split.drawn.cut, split.drawn.owners) == ((num_samples,), 12, ())
    assert split.drawn.updates == sampling.num_updates(SPEED) == sampling.num_updates(EXACT) == -(-num_samples // 12)
    assert split.batches.samples.tolist() == sampling.split(0, EXACT).batches.samples.tolist()


def test_a_loader_that_does_not_batch_asks_for_bare_indices() -> None:
    assert drawn(DataLoader(Numbers(3), batch_size=None), EXACT) == [0, 1, 2]
    listed = DataLoader(Numbers(3), batch_size=None, sampler=BatchSampler(RandomSampler(range(3)), 2, False))
    assert sorted(map(len, drawn(listed, EXACT))) == [1, 2]


def test_what_cannot_be_leased_is_refused_with_a_sentence() -> None:
    class Words(Sampler):
        def __iter__(self):
            yield from ("a", "b")

    with pytest.raises(UsageError, match="'a', which is not a whole number"):
        drawn(DataLoader(Numbers(2), 2, sampler=Words()), EXACT)
    with pytest.raises(UsageError, match=r"^--batch global cuts .* all must be of one size"):
        drawn(DataLoader(Numbers(7), batch_sampler=Halves(7)), GLOBAL)
    with pytest.raises(UsageError, match=r"^shares by speed .* all must be of one size"):
        drawn(DataLoader(Numbers(3), batch_size=None), SPEED)
    with pytest.raises(UsageError, match="DistributedSampler"):
        drawn(DataLoader(Numbers(8), 2, sampler=DistributedSampler(Numbers(8), 2, 0)), EXACT)
    with pytest.raises(UsageError, match="not a list of integer indices"):
        drawn(DataLoader(Numbers(8), batch_sampler=range(8)), EXACT)


def test_a_batch_list_that_does_not_add_up_is_refused() -> None:
    good = Sampling(DataLoader(Numbers(5), 2), 0).split(0, EXACT).batches.pack()
    assert unpack(good).samples.tolist() == [0, 1, 2, 3, 4]
    for data in (b"", good[:-8], good + b"\0" * 8, good[:24] + good[32:] + b"\0" * 8):
        with pytest.raises(ProtocolError):
            unpack(data)


def test_the_indices_of_a_list_mean_samples_of_a_dataset_of_one_size() -> None:
    sampling = Sampling(DataLoader(Numbers(7), batch_size=2), 0)
    drawn = sampling.split(0, EXACT).batches._replace(drawer=2, dataset_size=sampling.dataset_size)
    batches = unpack(drawn.pack())
    batches.check_dataset(0, 7)
    with pytest.raises(UsageError, match=r"^worker 1 prepared a dataset of 6 samples, worker 2, which drew the epoch's order, one of 7; "):
        batches.check_dataset(1, 6)


def test_a_dataset_that_does_not_say_its_size_is_taken_at_its_word() -> None:
    class Endless(Dataset):
        def __getitem__(self, index: int) -> int:
            return index

    sampling = Sampling(DataLoader(Endless(), batch_sampler=[[0, 1], [2]]), 0)
    drawn = sampling.split(0, EXACT).batches._replace(dataset_size=sampling.dataset_size)
    unpack(drawn.pack()).check_dataset(1, 6)
