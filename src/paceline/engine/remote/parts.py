"""Which bytes of a worker's arena and of the parameters belong to which shard: what travels when they share no memory.

Both ends reckon this from the model, so nothing that says where bytes go is ever sent.
"""

from __future__ import annotations

from paceline.logic.partition import arena_map, borders_of, layout_of, parameter_arena_bytes
from paceline.messages import ModelSpec
from paceline.transport.piece import Spec


class Parts:
    """The parts of a model in `num_shards` shards.

    Gradients (with the model's buffers, to shard 0) go up, one tensor each; parameters come down, and on wish the
    averaged buffers and what no optimizer holds, both from shard 0.
    """

    def __init__(self, model: ModelSpec, num_shards: int) -> None:
        layout = layout_of(model)
        self._borders = borders_of(layout, num_shards, elementwise=model.elementwise)
        self._places = arena_map(layout)
        self._num_buffer_bytes = layout.buffer_bytes
        self.num_shards = num_shards
        self.arena_bytes = self._places.size_bytes
        self.shared_bytes = parameter_arena_bytes(layout)[1]
        self.constants = slice(layout.trainable_bytes, layout.parameter_bytes)
        self.mean_buffers = self._at(self._places.mean_buffers, 0, self._num_buffer_bytes)
        self._rest = slice(layout.trainable_bytes, self.shared_bytes)

    def gradient(self, buffer: int, shard: int) -> list[slice]:
        """What a step's gradient in `buffer` sends to a shard, as places in the worker's arena."""
        own = self._at(self._places.gradients[buffer], self._borders[shard], self._borders[shard + 1])
        beside = self._at(self._places.buffers[buffer], 0, self._num_buffer_bytes)
        return [place for place in ([own, beside] if shard == 0 else [own]) if place.stop > place.start]

    def shared(self, shard: int) -> slice:
        """A shard's parameters, as a place in the parameter arena."""
        return slice(self._borders[shard], self._borders[shard + 1])

    def private(self, shard: int) -> slice:
        """A shard's parameters, as a place in the worker's arena."""
        return self._at(self._places.parameters, self._borders[shard], self._borders[shard + 1])

    def final(self, shard: int) -> list[slice]:
        """What a shard knows of the parameter arena at the end of a run; none of these is empty."""
        places = [self.shared(shard), self._rest] if shard == 0 else [self.shared(shard)]
        return [place for place in places if place.stop > place.start]

    @staticmethod
    def _at(base: int, start: int, stop: int) -> slice:
        return slice(base + start, base + stop)


def filled(places: list[memoryview]) -> list[memoryview]:
    """Those that hold anything: nothing is sent for the others, by either end."""
    return [place for place in places if len(place)]


def bytes_spec(place: memoryview) -> Spec:
    """How so many bytes are announced on the wire."""
    return Spec("uint8", (len(place),))
