"""The ring of pinned buffers, on an engine whose copies are done when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_adapter.transfer import Ring, Tensors  # noqa: E402


class Copy:
    """A copy that reads the host's memory only when it is completed, as a device may."""

    def __init__(self, hosts: Tensors, targets: Tensors) -> None:
        self.hosts, self.targets, self.done, self.ordered = hosts, targets, False, False

    def complete(self) -> None:
        if not self.done:
            for key, host in self.hosts.items():
                self.targets[key].copy_(host)
            self.done = True

    def wait(self) -> None:
        self.complete()

    def order(self, tensors: Tensors) -> None:
        self.complete()
        self.ordered = True


class ScriptedEngine:
    """Copies stay under way until they are waited for."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.num_buffers = 0

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        self.num_buffers += 1
        return torch.empty_like(like)

    def copy(self, hosts: Tensors, finish: Callable[[Tensors], Tensors]) -> tuple[Tensors, Copy]:
        targets = {key: torch.full_like(host, -1) for key, host in hosts.items()}
        self.copies.append(Copy(hosts, targets))
        return finish(targets), self.copies[-1]


def batch(number: int) -> dict[str, np.ndarray]:
    return {"tokens": np.full((2, 3), number, dtype=np.int64)}


def test_a_buffer_is_written_again_only_after_its_copy() -> None:
    engine = ScriptedEngine()
    ring = Ring(engine, lambda tensors: tensors, slots=3)
    sent = [ring.send(batch(number)) for number in range(10)]
    assert engine.num_buffers == 3
    assert [copy.done for copy in engine.copies] == [True] * 7 + [False] * 3
    for number, (tensors, copied) in enumerate(sent):
        copied.order(tensors)
        assert tensors["tokens"].tolist() == [[number] * 3] * 2


def test_nothing_waits_while_a_buffer_is_free() -> None:
    engine = ScriptedEngine()
    ring = Ring(engine, lambda tensors: tensors, slots=3)
    for number in range(3):
        ring.send(batch(number))
    assert not any(copy.done for copy in engine.copies)


def test_a_batch_of_another_shape_gets_buffers_of_its_own() -> None:
    engine = ScriptedEngine()
    ring = Ring(engine, lambda tensors: tensors, slots=1)
    ring.send(batch(1))
    tensors, copied = ring.send({"tokens": np.full((4, 3), 5, dtype=np.int64)})
    copied.order(tensors)
    assert tensors["tokens"].tolist() == [[5] * 3] * 4
    assert engine.num_buffers == 2


def test_batches_are_ordered_before_they_are_handed_out_and_the_state_counts_those_alone() -> None:
    """Through the whole loader: what is ahead is neither seen nor counted."""
    import neutral_core as nc
    from torch_adapter import Loader
    from torch_adapter.loader import widen_all

    plan = nc.Plan(nc.Source(nc.memory_corpus([np.arange(5000)], vocab_size=60_000)), seq_len=8, seed=3)
    loader = Loader(plan, batch_size=4, device="cpu", num_samples=40)
    engine = ScriptedEngine()
    loader._send, loader._depth = Ring(engine, partial(widen_all, dtype=torch.int64), slots=3).send, 2
    for step in range(10):
        assert loader.state_dict()["sample"] == 4 * step
        assert len(loader) == 10 - step
        found = next(loader)
        assert engine.copies[step].ordered
        assert not any(copy.ordered for copy in engine.copies[step + 1 :])
        assert found["sample"].tolist() == list(range(4 * step, 4 * step + 4))
    assert next(loader, None) is None
    loader.close()
