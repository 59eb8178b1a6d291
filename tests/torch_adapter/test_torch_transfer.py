"""The ring of pinned buffers, on an engine whose copies are done when the test says so."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scripted_engine import Copy, ScriptedEngine, send_through_a_script  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader  # noqa: E402
from torch_adapter.transfer import Ring  # noqa: E402
from torch_adapter.widen import Tensors  # noqa: E402


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


def test_buffers_of_a_failed_copy_are_not_used_again() -> None:
    """A copy that failed half-way may still read them."""

    class Failing(ScriptedEngine):
        def copy(self, hosts: Tensors, finish: Callable[[Tensors], Tensors]) -> tuple[Tensors, Copy]:
            tensors, copied = super().copy(hosts, finish)
            if len(self.copies) == 1:
                raise RuntimeError("out of memory")
            return tensors, copied

    engine = Failing()
    ring = Ring(engine, lambda tensors: tensors, slots=1)
    with pytest.raises(RuntimeError, match="out of memory"):
        ring.send(batch(1))
    ring.send(batch(2))
    assert engine.num_buffers == 2
    engine.copies[0].complete()
    assert (engine.copies[0].tensors["tokens"] == 1).all()


# Through the whole loader, on the scripted engine.


def plan_of(num_tokens: int = 5000) -> nc.Plan:
    return nc.Plan(nc.Source(nc.memory_corpus([np.arange(num_tokens)], vocab_size=60_000)), seq_len=8, seed=3)


def scripted(plan: nc.Plan, sent_ahead: int = 2, **options: Any) -> tuple[Loader, ScriptedEngine]:
    loader = Loader(plan, batch_size=4, device="cpu", **options)
    return loader, send_through_a_script(loader, sent_ahead)


def test_batches_are_ordered_before_they_are_handed_out_and_the_state_counts_those_alone() -> None:
    """What is ahead is neither seen nor counted."""
    loader, engine = scripted(plan_of(), num_samples=40)
    for step in range(10):
        assert loader.state_dict()["sample"] == 4 * step
        assert len(loader) == 10 - step
        found = next(loader)
        assert engine.copies[step].ordered
        assert not any(copy.ordered for copy in engine.copies[step + 1 :])
        assert found["sample"].tolist() == list(range(4 * step, 4 * step + 4))
    assert next(loader, None) is None
    loader.close()


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_depth_batches_are_under_way_before_they_are_asked_for_and_no_more(depth: int) -> None:
    loader, engine = scripted(plan_of(), depth)
    for step in range(12):
        assert next(loader)["sample"][0] == 4 * step
        assert len(engine.copies) == step + 1 + depth
        assert [copy.done for copy in engine.copies] == [True] * (step + 1) + [False] * depth
    assert engine.num_buffers == 3 * (depth + 1)  # tokens, source, sample
    loader.close()


@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(200, 1), (60_000, 2), (70_000, 4)])
def test_ids_travel_as_stored_and_are_wide_where_they_arrive(vocab_size: int, bytes_each: int) -> None:
    corpus = nc.memory_corpus([np.arange(150)], vocab_size=vocab_size)
    loader, engine = scripted(nc.Plan(nc.Source(corpus), seq_len=8, documents=True))
    batch = next(loader)
    assert batch["tokens"].dtype == batch["segment_ids"].dtype == torch.int64
    sent = {key: rows.numel() * rows.element_size() for key, rows in engine.copies[0].hosts.items()}
    wide = {"segment_ids": 4 * 9 * 4, "positions": 4 * 9 * 4, "source": 4 * 4, "sample": 4 * 8}
    assert sent == {"tokens": 4 * 9 * bytes_each, **wide}
    loader.close()


@pytest.mark.parametrize("threads", [0, 1])
def test_ctrl_c_comes_at_once_and_skips_nothing(threads: int) -> None:
    """While a chunk is read or waited for, while a batch is sent, and while one that is under way is waited for."""
    plan, stopped = plan_of(), []
    read = plan.read_pieces

    def read_pieces(samples: Any, *others: Any) -> nc.Batch:
        if samples[-1] >= 256 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        return read(samples, *others)

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    plan.read_pieces = read_pieces  # type: ignore[method-assign]
    loader, engine = scripted(plan, threads=threads)
    received: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            received += next(loader)["sample"].tolist()
    assert stopped
    assert len(received) < 256 - 4 * loader.depth + 4  # before the batches that were under way
    for place in (engine, engine.copies[-1]):
        name = "copy" if place is engine else "order"
        kept = getattr(place, name)
        setattr(place, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(4):
                assert loader.state_dict()["sample"] == len(received)
                received += next(loader)["sample"].tolist()
        setattr(place, name, kept)
    while len(received) < 512:
        received += next(loader)["sample"].tolist()
    assert received == list(range(512))
    loader.close()


def test_a_loader_that_is_dropped_and_not_closed_leaves_no_thread() -> None:
    loader, _ = scripted(plan_of())
    next(loader)
    assert any(thread.name.startswith("millstream") for thread in threading.enumerate())
    del loader
    gc.collect()  # the fixture of all tests then sees that its thread ends


@pytest.mark.parametrize("steps", [0, 1, 10, 11])
def test_closing_in_any_state_keeps_the_count_of_what_was_received(steps: int) -> None:
    loader, _ = scripted(plan_of(), num_samples=40)
    received = len([batch for _ in range(steps) if (batch := next(loader, None)) is not None])
    for _ in range(2):
        loader.close()
        assert loader.state_dict()["sample"] == 4 * received
        assert len(loader) == 10 - received
        with pytest.raises(ValueError, match="the loader is closed"):
            next(loader)


def test_a_state_is_gone_back_to_whatever_is_ahead() -> None:
    loader, _ = scripted(plan_of())
    state = loader.state_dict()
    for _ in range(3):
        next(loader)
    loader.load_state_dict(state)
    assert [next(loader)["sample"][0].item() for _ in range(4)] == [0, 4, 8, 12]
    loader.close()


@pytest.mark.parametrize("threads", [0, 1])
def test_an_error_of_the_reader_comes_when_its_batch_is_due_and_nothing_is_skipped(threads: int) -> None:
    plan, broken = plan_of(), [True]
    read = plan.read_pieces

    def read_pieces(samples: Any, *others: Any) -> nc.Batch:
        if broken and samples[-1] >= 256:  # the second chunk of 256 rows
            raise OSError("the network is away")
        return read(samples, *others)

    plan.read_pieces = read_pieces  # type: ignore[method-assign]
    loader, _ = scripted(plan, threads=threads)
    received = [next(loader)["sample"].tolist() for _ in range(64)]
    for _ in range(4):  # more often than there are buffers
        with pytest.raises(OSError, match="the network is away"):
            next(loader)
        assert loader.state_dict()["sample"] == 256
    broken.clear()
    received += [next(loader)["sample"].tolist() for _ in range(64)]
    assert [sample for samples in received for sample in samples] == list(range(512))
    loader.close()


def test_a_failed_transfer_skips_nothing() -> None:
    loader, engine = scripted(plan_of())
    next(loader)
    copy, broken = engine.copy, [True]

    def failing(*arguments: Any) -> tuple[Tensors, Copy]:
        if broken:
            raise RuntimeError("out of memory")
        return copy(*arguments)

    engine.copy = failing  # type: ignore[method-assign]
    received = [next(loader)["sample"][0].item() for _ in range(2)]  # they were under way
    for _ in range(4):
        with pytest.raises(RuntimeError, match="out of memory"):
            next(loader)
    broken.clear()
    assert received + [next(loader)["sample"][0].item() for _ in range(5)] == [4, 8, 12, 16, 20, 24, 28]
    loader.close()


def test_a_device_without_streams_gets_its_tensors_by_a_plain_copy() -> None:
    """The meta device stands for one: its tensors have shape, dtype and place, and no content."""
    with Loader(plan_of(), batch_size=4, device="meta", dtype=torch.int32) as loader:
        batch = next(loader)
    assert {key: (rows.device.type, rows.dtype, tuple(rows.shape)) for key, rows in batch.items()} == {
        "tokens": ("meta", torch.int32, (4, 9)),
        "source": ("meta", torch.int32, (4,)),
        "sample": ("meta", torch.int64, (4,)),
    }
