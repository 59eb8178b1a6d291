"""Traps of JAX that no other test names: 64-bit numbers, pinned memory with donation, ends that the processes do not divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip

import neutral_core as nc  # noqa: E402 - after importorskip
from jax_adapter import Loader, maxtext_batch, unpack  # noqa: E402 - after importorskip


def over_rows(devices: list[Any], **options: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"), **options)


def test_no_64_bit_number_goes_to_a_device_and_the_sample_stays_exact(devices: list[Any]) -> None:
    """Without x64 JAX makes 2^40 a 0 without a word."""
    assert int(jax.device_put(np.array(2**40))) == 0
    plan = mixed_plan(documents=True)
    with Loader(plan, batch_size=8, sharding=over_rows(devices), last="pad", num_samples=2**41) as loader:
        loader.set_state(plan.cursor(2**40))
        batch = next(loader)
        assert batch["sample"].tolist() == list(range(2**40, 2**40 + 8))
        assert loader.get_state()["sample"] == 2**40 + 8
    sent = {key: rows for key, rows in batch.items() if key != "sample"}
    assert all(isinstance(rows, jax.Array) and rows.dtype.itemsize <= 4 for rows in sent.values())
    assert "sample" not in unpack(batch, seq_len=16)
    assert "sample" not in maxtext_batch(batch, seq_len=16)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(200, "uint8"), (60000, "uint16"), (70000, "uint32")])
def test_tokens_go_as_narrow_as_they_are_stored(devices: list[Any], vocab_size: int, dtype: str) -> None:
    tokens = np.arange(2000) % vocab_size
    tokens[5] = vocab_size - 1
    plan = nc.Plan(nc.Source(nc.memory_corpus([tokens], vocab_size=vocab_size)), seq_len=16, shuffle="none")
    with Loader(plan, batch_size=8, sharding=over_rows(devices)) as loader:
        batch = next(loader)
    assert batch["tokens"].dtype == dtype
    assert int(unpack(batch, seq_len=16)["inputs"][0, 5]) == vocab_size - 1


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_batches_in_pinned_memory_may_be_donated(devices: list[Any], memory: str) -> None:
    """A step that donates its batch overwrites nothing that comes later; JAX refuses to donate from one kind of memory to another."""
    plan, sharding = mixed_plan(seq_len=31), over_rows(devices, memory_kind=memory)
    step = jax.jit(lambda tokens: tokens ^ 1, donate_argnums=0)
    with Loader(plan, batch_size=8, sharding=sharding, depth=3, num_samples=320) as loader:
        for number, batch in enumerate(loader):
            tokens = batch["tokens"]
            assert tokens.sharding.memory_kind == memory
            expected = plan.read(np.arange(8 * number, 8 * number + 8))["tokens"]
            assert np.array_equal(np.asarray(tokens), expected)
            on_device = tokens if memory == "device" else jax.device_put(tokens, over_rows(devices))
            assert np.array_equal(np.asarray(step(on_device)), expected ^ 1)
            assert on_device.is_deleted()


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("num_samples", [1, 15, 16, 17, 33])
def test_an_uneven_end_has_the_same_shapes_and_steps_at_any_number_of_parts(
    devices: list[Any], parts: int, num_samples: int
) -> None:
    """Unpadded shares of unequal length would let one process go on, and block in the next collective."""
    plan, found = mixed_plan(), []
    with Loader(
        plan, batch_size=16, sharding=over_rows(devices[:parts]), last="pad", num_samples=num_samples
    ) as loader:
        assert len(loader) == -(-num_samples // 16)
        for batch in loader:
            assert batch["tokens"].shape == (16, 17)
            counted = np.asarray(batch["loss_mask"])
            assert np.array_equal(counted.all(axis=1), batch["sample"] >= 0)
            assert np.array_equal(counted.any(axis=1), batch["sample"] >= 0)
            found += [sample for sample in batch["sample"].tolist() if sample >= 0]
    assert found == list(range(num_samples))


@pytest.mark.parametrize("documents", [False, True])
def test_one_packed_transfer_a_step(devices: list[Any], monkeypatch: pytest.MonkeyPatch, documents: bool) -> None:
    """All keys are in it, in words of the tokens' 16 bits, segment ids and positions in 8, and the mask in 8: rows of multiples of 64 bytes."""
    sent: list[Any] = []
    original = jax.make_array_from_callback
    monkeypatch.setattr(
        jax, "make_array_from_callback", lambda shape, *rest: sent.append(shape) or original(shape, *rest)
    )
    plan = mixed_plan(documents=documents, seq_len=40)
    with Loader(plan, batch_size=8, sharding=over_rows(devices), depth=0, last="pad", num_samples=8) as loader:
        assert next(loader).packed.dtype == np.uint16
    words = 41 + 2 + 20 + (2 * 21 if documents else 0)  # tokens, source, loss_mask, segment ids and positions
    assert sent == [(8, -(-words // 32) * 32)]


def test_to_donate_a_batch_to_unpack_would_save_nothing(devices: list[Any]) -> None:
    """XLA reuses a donated argument only for a result of its size and dtype, and inputs and targets have neither; so unpack donates nothing."""
    plan = mixed_plan(documents=True)
    with Loader(plan, batch_size=8, sharding=over_rows(devices)) as loader:
        batch = next(loader)
        donating = jax.jit(lambda batch: unpack(batch, seq_len=16), donate_argnums=0)
        assert "input_output_alias" not in donating.lower(batch).compile().as_text()
        rows = unpack(batch, seq_len=16)
        assert not batch.packed.is_deleted()
        step = jax.jit(lambda rows: {key: row + 1 for key, row in rows.items()}, donate_argnums=0)
        assert "input_output_alias" in step.lower(rows).compile().as_text()
        step(rows)
    assert all(row.is_deleted() for row in rows.values())
