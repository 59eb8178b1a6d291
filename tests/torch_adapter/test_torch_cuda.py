"""The transfer on a real accelerator: pinned buffers, copy stream and events. Skipped, aloud, on a machine without one.

Where the scripted engine says *when* a copy is done, the device's own queues are kept busy here, so that a missing wait shows as wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, block_mask, cu_seqlens, loss_by_source  # noqa: E402
from torch_adapter.loader import STREAMED  # noqa: E402
from torch_adapter.transfer import AcceleratorEngine, Ring  # noqa: E402

DEVICE = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
pytestmark = pytest.mark.skipif(
    DEVICE is None or DEVICE.type not in STREAMED,
    reason=f"needs a device of type {' or '.join(STREAMED)}; torch sees {DEVICE or 'none'}",
)


def plan_of(vocab_size: int = 60_000, **options: Any) -> nc.Plan:
    random = np.random.default_rng(3)
    documents = [random.integers(0, vocab_size, n) for n in random.integers(1, 900, 400)]
    return nc.Plan(
        nc.Source(nc.memory_corpus(documents, vocab_size=vocab_size)), **({"seq_len": 256, "seed": 5} | options)
    )


@pytest.fixture
def busy() -> Iterator[Any]:
    """Return what gives the current stream some tens of milliseconds of work, without waiting for it."""
    matrix = torch.randn(4096, 4096, device=DEVICE)

    def work() -> None:
        for _ in range(20):
            torch.mm(matrix, matrix)

    yield work
    torch.accelerator.synchronize()


@pytest.mark.parametrize("vocab_size", [200, 60_000, 70_000])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("depth", [0, 1, 2, 8])
def test_the_rows_are_the_cores_and_stay_so(vocab_size: int, dtype: Any, depth: int) -> None:
    """All batches are kept: nothing that was handed out is written again."""
    plan = plan_of(vocab_size, documents=True)
    with Loader(plan, batch_size=16, num_samples=16 * 60 + 3, last="pad", dtype=dtype, depth=depth) as loader:
        assert loader.device.index is not None
        kept = list(loader)
    with nc.Loader(plan, batch_size=16, num_samples=16 * 60 + 3, last="pad") as core:
        for found, expected in zip(kept, core, strict=True):
            assert set(found) == set(expected)
            for key, rows in expected.items():
                assert found[key].device == loader.device
                assert np.array_equal(found[key].cpu().numpy(), rows)
    assert {kept[0][key].dtype for key in ("tokens", "segment_ids", "positions", "source")} == {dtype}


def test_a_busy_stream_that_uses_the_batches_late_sees_them_whole(busy: Any) -> None:
    """Each batch is used behind work that outlasts several copies, then dropped, so that its memory may be given to another."""
    plan, sums = plan_of(), []
    with Loader(plan, batch_size=64, num_samples=64 * 40) as loader:
        for batch in loader:
            busy()
            sums.append(batch["tokens"].sum(dim=1))
            del batch
    expected = plan.read(np.arange(64 * 40))["tokens"].astype(np.int64).sum(axis=1)
    assert np.array_equal(torch.cat(sums).cpu().numpy(), expected)


def test_a_stream_of_the_callers_is_the_one_that_waits(busy: Any) -> None:
    plan, mine, sums = plan_of(), torch.Stream(device=DEVICE), []
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(mine)
    try:
        with Loader(plan, batch_size=64, num_samples=64 * 10) as loader:
            for batch in loader:
                assert torch.accelerator.current_stream() == mine
                busy()
                sums.append(batch["tokens"].sum(dim=1))
    finally:
        torch.accelerator.set_stream(before)
    mine.synchronize()
    expected = plan.read(np.arange(64 * 10))["tokens"].astype(np.int64).sum(axis=1)
    assert np.array_equal(torch.cat(sums).cpu().numpy(), expected)


def test_a_buffer_is_written_again_only_after_its_copy_on_a_busy_copy_stream() -> None:
    """One buffer of 64 MB, ten batches: each next one waits for the copy before."""
    device = torch.device(DEVICE.type, torch.accelerator.current_device_index())
    ring = Ring(AcceleratorEngine(device), lambda tensors: tensors, slots=1)
    sent = [ring.send({"tokens": np.full((8, 1 << 20), number, dtype=np.int64)}) for number in range(10)]
    for number, (tensors, copied) in enumerate(sent):
        copied.order(tensors)
        assert bool((tensors["tokens"] == number).all())


def test_nothing_waits_for_the_stream_of_the_step(busy: Any) -> None:
    """While the step's stream has work for long, several batches are handed out before it is done."""
    with Loader(plan_of(), batch_size=16) as loader:
        next(loader)
        torch.accelerator.synchronize()
        for _ in range(20):
            busy()
        done = torch.Event(device=DEVICE)
        done.record(torch.accelerator.current_stream())
        for _ in range(8):
            next(loader)
        assert not done.query()


@pytest.mark.skipif(DEVICE is None or DEVICE.type != "cuda", reason="torch tells of synchronisation on cuda only")
@pytest.mark.filterwarnings("error")
def test_no_call_synchronises_in_torchs_own_debug_mode() -> None:
    """With documents and cu_seqlens, a block mask and losses by source: torch raises where a call waits for the device."""
    plan = plan_of(documents=True)
    with Loader(plan, batch_size=16, num_samples=16 * 30, cu_seqlens=True, max_documents=512) as loader:
        next(loader)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in loader:
                block_mask(batch["segment_ids"], plan.seq_len)
                loss_by_source(batch["tokens"][:, 1:].float(), batch["source"], 1)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_documents_are_counted_as_on_the_host_and_arrive_on_the_device() -> None:
    plan = plan_of(documents=True)
    with Loader(plan, batch_size=8, cu_seqlens=True) as loader:
        for step in range(5):
            batch = next(loader)
            rows = torch.from_numpy(plan.read(np.arange(8 * step, 8 * step + 8))["segment_ids"])
            ends, longest = cu_seqlens(rows, plan.seq_len)
            assert batch["cu_seqlens"].device == loader.device
            assert batch["cu_seqlens"].dtype == torch.int32
            assert torch.equal(batch["cu_seqlens"].cpu(), ends)
            assert batch["max_seqlen"] == longest


def test_a_loader_is_closed_and_dropped_while_copies_are_under_way() -> None:
    for received in (0, 1, 3):
        loader = Loader(plan_of(), batch_size=256, depth=4)
        for _ in range(received):
            next(loader)
        loader.close()
        del loader
    torch.accelerator.synchronize()
