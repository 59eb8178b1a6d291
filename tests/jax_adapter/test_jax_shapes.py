"""Batches as MaxText and Levanter name them: in loops of their shape, computed once more by hand, and compiled without a copy between devices."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 - after importorskip
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip

import neutral_core as nc  # noqa: E402 - after importorskip
from jax_adapter import Loader, levanter_batch, maxtext_batch, unpack  # noqa: E402 - after importorskip

MAXTEXT = {f"{side}{part}" for side in ("inputs", "targets") for part in ("", "_position", "_segmentation")}
COLLECTIVE = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast)")
HOST = re.compile(r"callback|infeed|outfeed|custom-call|\bsend\b|\brecv\b")


def a_plan() -> nc.Plan:
    """Three documents, of 5, 4 and 7 tokens, in file order: rows of 4 targets begin at tokens 0, 4, 8."""
    corpus = nc.memory_corpus([np.arange(1, 6), np.arange(11, 15), np.arange(21, 28)], vocab_size=30)
    return nc.Plan(nc.Source(corpus), seq_len=4, shuffle="none", documents=True)


def one_batch(plan: nc.Plan, devices: list[Any], *, batch_size: int, **options: Any) -> dict[str, Any]:
    mesh = Mesh(np.array(devices[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    with Loader(plan, batch_size=batch_size, sharding=sharding, **options) as loader:
        return next(loader)


def test_a_maxtext_batch_by_hand(devices: list[Any]) -> None:
    batch = one_batch(a_plan(), devices, batch_size=4, num_samples=3, last="pad")
    found = {key: np.asarray(rows).tolist() for key, rows in maxtext_batch(batch, seq_len=4).items()}
    assert found == {
        "inputs": [[1, 2, 3, 4], [5, 11, 12, 13], [14, 21, 22, 23], [0] * 4],
        "targets": [[2, 3, 4, 5], [11, 12, 13, 14], [21, 22, 23, 24], [0] * 4],
        "inputs_position": [[0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 1, 2], [0] * 4],
        "targets_position": [[1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3], [0] * 4],
        "inputs_segmentation": [[1] * 4, [1, 2, 2, 2], [1, 2, 2, 2], [0] * 4],
        "targets_segmentation": [[1] * 4, [2] * 4, [2] * 4, [0] * 4],
    }


def test_a_levanter_batch_by_hand(devices: list[Any]) -> None:
    batch = one_batch(a_plan(), devices, batch_size=4, num_samples=3, last="pad")
    made = levanter_batch(batch, seq_len=4)
    assert {key: str(rows.dtype) for key, rows in made.items()} == {
        "tokens": "int32",
        "loss_weight": "float32",
        "segment_ids": "int32",
    }
    assert {key: np.asarray(rows).tolist() for key, rows in made.items()} == {
        "tokens": [[1, 2, 3, 4, 5], [5, 11, 12, 13, 14], [14, 21, 22, 23, 24], [0] * 5],
        "loss_weight": [[1, 1, 1, 1, 0]] * 3 + [[0] * 5],
        "segment_ids": [[1] * 5, [1, 2, 2, 2, 2], [1, 2, 2, 2, 2], [0] * 5],
    }


@pytest.mark.parametrize("last", ["drop", "pad"])
def test_without_documents_a_row_is_one_segment_and_padding_none(devices: list[Any], last: str) -> None:
    batch = one_batch(mixed_plan(), devices, batch_size=4, num_samples=4 if last == "drop" else 3, last=last)
    real = np.array([1, 1, 1, last == "drop"], dtype=np.int32)[:, None]
    rows = maxtext_batch(batch, seq_len=16)
    assert np.array_equal(rows["inputs_segmentation"], np.ones((4, 16), np.int32) * real)
    assert np.array_equal(rows["targets_segmentation"], np.ones((4, 16), np.int32) * real)
    assert np.array_equal(rows["inputs_position"], np.arange(16) * real)
    assert np.array_equal(rows["targets_position"], np.arange(1, 17) * real)
    assert np.array_equal(levanter_batch(batch, seq_len=16)["segment_ids"], np.ones((4, 17), np.int32) * real)


def logits_of(tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
    """A toy that needs all three: bags of the tokens before, in the same document, with weights by position."""
    vocabulary = 500
    embed = jax.random.normal(jax.random.key(0), (vocabulary, 16))
    length = tokens.shape[1]
    seen = jnp.tril(jnp.ones((length, length), bool)) & (segments[:, :, None] == segments[:, None, :])
    x = embed[tokens] + 0.1 * jnp.sin(positions[..., None] * jnp.arange(16))
    return jnp.einsum("bts,bsd->btd", seen.astype(jnp.float32), x) @ embed.T


def nats(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


def test_a_maxtext_loop_and_a_levanter_loop_compute_the_same_losses_as_unpack(devices: list[Any]) -> None:
    """The three shapes say the same thing: the losses of six steps, the last one padded, are equal."""
    plan = mixed_plan(documents=True)
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))

    @jax.jit
    def maxtext_loss(data: dict[str, jax.Array]) -> jax.Array:
        logits = logits_of(data["inputs"], data["inputs_segmentation"], data["inputs_position"])
        weights = (data["targets_segmentation"] != 0).astype(jnp.float32)
        return (nats(logits, data["targets"]) * weights).sum() / weights.sum()

    @jax.jit
    def levanter_loss(example: dict[str, jax.Array], positions: jax.Array) -> jax.Array:
        logits = logits_of(example["tokens"], example["segment_ids"], positions)
        each = nats(logits, jnp.roll(example["tokens"], -1, axis=1))
        return (each * example["loss_weight"]).sum() / example["loss_weight"].sum()

    @jax.jit
    def own_loss(rows: dict[str, jax.Array]) -> jax.Array:
        logits = logits_of(rows["inputs"], rows["segment_ids"], rows["positions"])
        return (nats(logits, rows["targets"]) * rows["loss_mask"]).sum() / rows["loss_mask"].sum()

    steps = 0
    with Loader(plan, batch_size=16, sharding=sharding, num_samples=5 * 16 + 3, last="pad") as loader:
        for batch in loader:
            maxtext = maxtext_batch(batch, seq_len=16)
            assert set(maxtext) == MAXTEXT
            assert {(rows.shape, str(rows.dtype)) for rows in maxtext.values()} == {((16, 16), "int32")}
            expected = float(own_loss(unpack(batch, seq_len=16)))
            assert float(maxtext_loss(maxtext)) == pytest.approx(expected, rel=1e-5)
            example = levanter_batch(batch, seq_len=16)
            assert float(levanter_loss(example, batch["positions"])) == pytest.approx(expected, rel=1e-5)
            assert np.isfinite(expected)
            steps += 1
    assert steps == 6


@pytest.mark.parametrize(
    ("shape", "context"),
    [
        (shape, context)
        for shape in (unpack, maxtext_batch, levanter_batch)
        for context in ("", "cut by the shape", "cut by the loader")
        if (shape, context) != (levanter_batch, "cut by the loader")  # its rows hold their own targets
    ],
)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("documents", [False, True])
def test_no_shape_moves_anything_between_devices_or_to_the_host(
    devices: list[Any], monkeypatch: pytest.MonkeyPatch, shape: Any, kind: AxisType, documents: bool, context: str
) -> None:
    """Seen in the compiled program: no collective, no call to the host; and the results lie as a step with these shardings wants them."""
    jitted = sys.modules["jax_adapter.batch"].jitted
    compiled: list[str] = []

    def recording(*options: Any) -> Any:
        program = jitted(*options)

        def call(*arguments: Any) -> Any:
            compiled.append(program.lower(*arguments).compile().as_text())
            return program(*arguments)

        return call

    monkeypatch.setattr(sys.modules["jax_adapter.batch"], "jitted", recording)
    mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "context"), axis_types=(kind, kind))
    cut, rows_only = NamedSharding(mesh, PartitionSpec("data", "context")), NamedSharding(mesh, PartitionSpec("data"))
    wanted = cut if context == "cut by the shape" else None
    by_loader = context == "cut by the loader"
    plan = mixed_plan(documents=documents, seq_len=15 if shape is levanter_batch else 16)
    with Loader(plan, batch_size=8, sharding=cut if by_loader else rows_only, last="pad", num_samples=6) as loader:
        rows = shape(next(loader), seq_len=plan.seq_len, sharding=wanted)
    assert len(compiled) == 1
    assert "ENTRY" in compiled[0]
    assert not COLLECTIVE.search(compiled[0])
    assert not HOST.search(compiled[0])
    held = cut if context else rows_only
    assert all(array.sharding.is_equivalent_to(held, 2) for array in rows.values() if array.ndim == 2)


def test_the_check_for_collectives_sees_one(devices: list[Any]) -> None:
    mesh = Mesh(np.array(devices), ("data",))
    by_rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    rows = jax.device_put(np.zeros((8, 4), np.int32), by_rows)
    program = jax.jit(lambda x: x + 1, out_shardings=everywhere).lower(rows).compile().as_text()
    assert COLLECTIVE.search(program)


@pytest.mark.parametrize("shape", [maxtext_batch, levanter_batch])
def test_a_step_that_expects_these_shardings_gets_the_arrays_as_they_are(devices: list[Any], shape: Any) -> None:
    """A step compiled with in_shardings takes arrays of that sharding without a copy; with others jit would refuse or move them."""
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    step = jax.jit(lambda batch: batch, in_shardings=sharding, out_shardings=sharding, donate_argnums=0)
    compilations: list[str] = []

    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    with Loader(mixed_plan(documents=True, seq_len=13), batch_size=8, sharding=sharding) as loader:
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            for _ in range(30):
                made = shape(next(loader), seq_len=13)
                pointers = [
                    shard.data.unsafe_buffer_pointer()
                    for shard in made["loss_weight" if "loss_weight" in made else "inputs"].addressable_shards
                ]
                kept = step(made)
                after = kept["loss_weight" if "loss_weight" in kept else "inputs"].addressable_shards
                assert [shard.data.unsafe_buffer_pointer() for shard in after] == pointers
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compilations) == 2  # the shape and the step, once each


def test_levanters_rows_are_not_taken_from_rows_cut_by_the_loader(devices: list[Any]) -> None:
    mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "context"))
    cut = NamedSharding(mesh, PartitionSpec("data", "context"))
    with (
        Loader(mixed_plan(), batch_size=8, sharding=cut) as loader,
        pytest.raises(ValueError, match=r"give the loader a sharding of rows only, and levanter_batch the one"),
    ):
        levanter_batch(next(loader), seq_len=16)


@pytest.mark.parametrize("documents", [False, True])
def test_maxtexts_batch_of_rows_cut_by_the_loader_is_that_of_whole_rows(devices: list[Any], documents: bool) -> None:
    mesh = Mesh(np.array(devices).reshape(2, 4), ("data", "context"))
    cut, rows_only = NamedSharding(mesh, PartitionSpec("data", "context")), NamedSharding(mesh, PartitionSpec("data"))
    plan, options = mixed_plan(documents=documents), {"batch_size": 8, "num_samples": 13, "last": "pad"}
    with Loader(plan, sharding=cut, **options) as parts, Loader(plan, sharding=rows_only, **options) as whole:
        for left, right in zip(parts, whole, strict=True):
            found, expected = maxtext_batch(left, seq_len=16), maxtext_batch(right, seq_len=16)
            assert set(found) == MAXTEXT
            assert all(np.array_equal(found[key], expected[key]) for key in MAXTEXT)
