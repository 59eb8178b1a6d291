"""Documents in one row do not see each other: cu_seqlens and block masks against numbers from paper, plain loops and torch's own mask."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from scripted_engine import send_through_a_script  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset, block_mask, cu_seqlens, document_mask_mod  # noqa: E402

UNCOMPILED = "ignore:flex_attention called without torch.compile:UserWarning"


def paper_plan(**options: Any) -> nc.Plan:
    """Documents A to E of 3, 0, 7, 2 and 5 tokens: 17, so 4 windows of 4 inputs. Rows: AAAC CCCC CCDD EEEE, the last token is a target only."""
    corpus = nc.memory_corpus([[1] * 3, [], [3] * 7, [4] * 2, [5] * 5], vocab_size=6)
    return nc.Plan(nc.Source(corpus), seq_len=4, shuffle="none", **({"documents": True} | options))


PAPER = [0, 3, 4, 8, 10, 12, 16]


def counted(segment_ids: list[list[int]], seq_len: int) -> tuple[list[int], int]:
    """Count documents one token after another."""
    lengths = [len(list(run)) for row in segment_ids for _, run in groupby(row[:seq_len])]
    return [sum(lengths[:number]) for number in range(len(lengths) + 1)], max(lengths)


@st.composite
def rows_of_documents(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Segment ids as the core makes them, padding at the end of rows too, and a seq_len not beyond them."""
    width = draw(st.integers(1, 40))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        lengths = draw(st.lists(st.integers(1, 12), max_size=8))
        row = [number for number, length in enumerate(lengths, 1) for _ in range(length)][:width]
        rows.append(row + [0] * (width - len(row)))
    return rows, draw(st.integers(1, width))


@pytest.mark.parametrize("extra_tokens", [0, 3])
def test_the_documents_of_rows_counted_on_paper(extra_tokens: int) -> None:
    """The empty document leaves no entry, the one that runs on begins again in each row, and targets and extra tokens are not counted."""
    batch = paper_plan(extra_tokens=extra_tokens).read([0, 1, 2, 3])
    places, longest = cu_seqlens(torch.from_numpy(batch["segment_ids"]), 4)
    assert (places.tolist(), places.dtype, longest) == (PAPER, torch.int32, 4)
    assert type(longest) is int


def test_a_document_that_begins_in_the_target_column_is_no_input() -> None:
    segment_ids = torch.tensor([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 1, 2]])
    assert cu_seqlens(segment_ids, 5)[0].tolist() == [0, 2, 5, 10]
    assert cu_seqlens(segment_ids, 5)[1] == 5
    assert cu_seqlens(segment_ids, 6)[0].tolist() == [0, 2, 5, 6, 11, 12]


def test_padding_is_a_document_of_its_own_in_each_row() -> None:
    segment_ids = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert cu_seqlens(segment_ids, 4)[0].tolist() == [0, 2, 4, 8, 12]


def test_a_padded_last_batch_has_the_real_rows_documents_and_one_for_each_padding_row() -> None:
    with Loader(paper_plan(), batch_size=4, num_samples=6, last="pad", device="cpu", cu_seqlens=True) as loader:
        full, padded = loader
    assert (full["cu_seqlens"].tolist(), full["max_seqlen"]) == (PAPER, 4)
    assert padded["sample"].tolist() == [4, 5, -1, -1]
    assert padded["cu_seqlens"].tolist() == [0, 3, 4, 8, 12, 16]


@given(rows_of_documents())
def test_cu_seqlens_is_what_a_plain_count_says(case: tuple[list[list[int]], int]) -> None:
    segment_ids, seq_len = case
    places, longest = cu_seqlens(torch.tensor(segment_ids), seq_len)
    assert (places.tolist(), longest) == counted(segment_ids, seq_len)
    assert places[-1] == len(segment_ids) * seq_len


@given(rows_of_documents(), st.integers(0, 9))
def test_a_bound_repeats_the_end(case: tuple[list[list[int]], int], more: int) -> None:
    segment_ids, seq_len = case
    expected, longest = counted(segment_ids, seq_len)
    bound = len(expected) - 1 + more
    places, found = cu_seqlens(torch.tensor(segment_ids), seq_len, max_documents=bound)
    assert places.tolist() == expected + [expected[-1]] * more
    assert found == longest
    if bound > 1:
        with pytest.raises(ValueError, match=rf"hold {len(expected) - 1} documents, more than max_documents="):
            cu_seqlens(torch.tensor(segment_ids), seq_len, max_documents=len(expected) - 2)


def test_no_rows_have_no_documents() -> None:
    places, longest = cu_seqlens(torch.zeros((0, 5), dtype=torch.int32), 4)
    assert (places.tolist(), longest) == ([0], 0)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 5)])
@pytest.mark.parametrize("of", [cu_seqlens, block_mask])
def test_segment_ids_of_another_shape_are_refused(shape: tuple[int, ...], of: Any) -> None:
    with pytest.raises(ValueError, match="expected \\[rows, seq_len or more\\]"):
        of(torch.ones(shape, dtype=torch.int32), 4)


def test_more_inputs_than_int32_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="2,147,483,648 inputs, more than int32 can count"):
        cu_seqlens(torch.ones((1, 1), dtype=torch.int32).expand(2**16, 2**15), 2**15)


# Through the loader.


def numbered_plan(seq_len: int = 32, **options: Any) -> nc.Plan:
    """Documents of 0 to 30 tokens whose ids say which document they are of: id // 50."""
    random = np.random.default_rng(3)
    documents = [
        50 * number + random.integers(0, 50, length) for number, length in enumerate(random.integers(0, 31, 80))
    ]
    corpus = nc.memory_corpus(documents, vocab_size=4000)
    return nc.Plan(nc.Source(corpus), seq_len=seq_len, seed=1, documents=True, **options)


def runs(tokens: Any, seq_len: int) -> list[list[int]]:
    """Return the pieces of documents in the inputs of rows, told apart by their ids alone."""
    return [list(run) for row in tokens.tolist() for _, run in groupby(row[:seq_len], lambda token: token // 50)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_every_rank_has_the_documents_of_its_own_rows_and_together_those_of_the_global_batch(world_size: int) -> None:
    plan = numbered_plan()
    loaders = [
        Loader(plan, batch_size=24, device="cpu", dp_rank=rank, dp_world_size=world_size, cu_seqlens=True)
        for rank in range(world_size)
    ]
    for step in range(4):
        lengths = []
        for loader in loaders:
            batch = next(loader)
            found = np.diff(batch["cu_seqlens"].numpy()).tolist()
            assert batch["cu_seqlens"].dtype == torch.int32
            assert batch["max_seqlen"] == max(found)
            lengths.extend(found)
        rows = plan.read(np.arange(24 * step, 24 * step + 24))["tokens"]
        assert lengths == [len(run) for run in runs(rows, 32)]
    for loader in loaders:
        loader.close()


def test_positions_restart_where_cu_seqlens_says() -> None:
    with Loader(numbered_plan(extra_tokens=2), batch_size=6, device="cpu", cu_seqlens=True) as loader:
        for _ in range(20):
            batch = next(loader)
            restarts = (batch["positions"][:, :32].flatten() == 0).nonzero().flatten()
            assert batch["cu_seqlens"][:-1].tolist() == restarts.tolist()
            assert batch["max_seqlen"] == batch["positions"][:, :32].max() + 1


@pytest.mark.parametrize("max_documents", [None, 60])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_sent_ahead_they_stay_with_their_batch_and_need_no_more_buffers(
    max_documents: int | None, dtype: torch.dtype
) -> None:
    plan = numbered_plan()
    loader = Loader(plan, batch_size=6, device="cpu", dtype=dtype, cu_seqlens=True, max_documents=max_documents)
    engine = send_through_a_script(loader)
    shapes = set()
    for step in range(30):
        batch = next(loader)
        assert batch["cu_seqlens"].dtype == torch.int32
        shapes.add(tuple(batch["cu_seqlens"].shape))
        found = np.diff(batch["cu_seqlens"].numpy())
        lengths = [len(run) for run in runs(plan.read(np.arange(6 * step, 6 * step + 6))["tokens"], 32)]
        assert found[found > 0].tolist() == lengths
        assert batch["max_seqlen"] == max(lengths)
    assert engine.num_buffers == 3 * 6  # three sets of tokens, segment_ids, positions, source, sample and cu_seqlens
    assert (shapes == {(61,)}) == (max_documents is not None)
    loader.close()


def test_more_documents_than_the_bound_stop_the_loader_and_a_larger_bound_goes_on_there() -> None:
    """Bounds are no part of the state: nothing is skipped, nothing comes twice."""
    plan = numbered_plan()
    with Loader(plan, batch_size=2, device="cpu") as plain:
        counts = [len(runs(next(plain)["tokens"], 32)) for _ in range(60)]
    bound = max(counts) - 1
    step = counts.index(max(counts))
    assert step > 0
    with Loader(plan, batch_size=2, device="cpu", cu_seqlens=True, max_documents=bound) as loader:
        for _ in range(step):
            next(loader)
        for _ in range(2):
            with pytest.raises(ValueError, match=f"hold {bound + 1} documents, more than max_documents={bound}"):
                next(loader)
        state = loader.state_dict()
    with Loader(plan, batch_size=2, device="cpu", cu_seqlens=True, max_documents=bound + 1) as loader:
        loader.load_state_dict(state)
        assert next(loader)["sample"].tolist() == [2 * step, 2 * step + 1]


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        (False, {"cu_seqlens": True}, "make it with documents=True"),
        (True, {"max_documents": 9}, "for cu_seqlens=True only"),
        (True, {"cu_seqlens": True, "max_documents": 0}, "max_documents is 0"),
        (True, {"cu_seqlens": True, "max_documents": 2.0}, "max_documents is 2.0"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(documents: bool, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(paper_plan(documents=documents), batch_size=4, device="cpu", **options)


def test_the_batch_has_no_such_keys_unless_asked() -> None:
    with Loader(paper_plan(), batch_size=4, device="cpu") as loader:
        assert set(next(loader)) == {"tokens", "segment_ids", "positions", "source", "sample"}


def test_torchs_own_loader_has_them_by_the_function() -> None:
    loader = torch.utils.data.DataLoader(MapDataset(paper_plan(), 4), batch_size=4)
    assert [cu_seqlens(batch["segment_ids"], 4)[0].tolist() for batch in loader] == [PAPER]


# The block mask.


def blocks(mask: Any) -> dict[str, set[tuple[int, int, int]]]:
    """Return which (row, block, block) the lists of a mask name."""
    found = {}
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, indices = getattr(mask, f"{name}_num_blocks"), getattr(mask, f"{name}_indices")
        assert counts.dtype == indices.dtype == torch.int32
        found[name] = {
            (row, block, other)
            for row in range(counts.shape[0])
            for block in range(counts.shape[2])
            for other in indices[row, 0, block, : counts[row, 0, block]].tolist()
        }
    return found


def test_the_blocks_of_a_row_counted_on_paper() -> None:
    """Blocks of 2 tokens, of documents of 5 and 2 tokens and one of padding: keys of the first block are seen whole by the second alone."""
    mask = block_mask(torch.tensor([[1, 1, 1, 1, 1, 2, 2, 0, 9]]), 8, block_size=2)
    partly = {(0, 0, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2), (0, 3, 2), (0, 3, 3)}
    assert blocks(mask)["kv"] == partly
    assert blocks(mask)["full_kv"] == {(0, 1, 0)}
    assert mask.shape == (1, 1, 8, 8)


@settings(max_examples=60)
@given(rows_of_documents(), st.integers(2, 9))
def test_the_block_mask_is_the_one_that_torch_makes_of_all_pairs(
    case: tuple[list[list[int]], int], block_size: int
) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    segment_ids, seq_len = torch.tensor(case[0]), case[1]
    found = block_mask(segment_ids, seq_len, block_size=block_size)

    def by_definition(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (segment_ids[b, q] == segment_ids[b, kv]) & (segment_ids[b, q] > 0)

    expected = create_block_mask(
        by_definition, len(segment_ids), 1, seq_len, seq_len, device="cpu", BLOCK_SIZE=block_size
    )
    assert blocks(found) == blocks(expected)
    assert (found.shape, found.BLOCK_SIZE) == (expected.shape, expected.BLOCK_SIZE)
    b, q, kv = torch.meshgrid(*(torch.arange(n) for n in (len(segment_ids), seq_len, seq_len)), indexing="ij")
    assert torch.equal(found.mask_mod(b, 0, q, kv), by_definition(b, 0, q, kv))


def test_no_tensor_of_a_mask_grows_with_the_square_of_seq_len() -> None:
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.elements = max([self.elements, *(x.numel() for x in [out] if isinstance(x, torch.Tensor))])
            return out

    with Largest() as largest:
        block_mask(torch.ones((1, 2**15 + 1), dtype=torch.int32), 2**15)
    assert 2**15 <= largest.elements <= 2**17  # the dense mask has 2^30


def test_a_mask_is_made_without_asking_the_device_for_anything() -> None:
    """The meta device has no values to ask for."""
    mask = block_mask(torch.ones((2, 301), dtype=torch.int64, device="meta"), 300)
    assert (mask.shape, mask.kv_indices.device.type) == ((2, 1, 300, 300), "meta")


def test_blocks_of_one_token_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size is 1"):
        block_mask(torch.ones((2, 5), dtype=torch.int32), 4, block_size=1)


# A toy attention, in float64.

SEQ_LEN, WIDTH = 32, 16
RANDOM = torch.Generator().manual_seed(0)
IDS, PLACES = (torch.randn(n, WIDTH, generator=RANDOM, dtype=torch.float64) for n in (4000, SEQ_LEN))
WEIGHTS = torch.randn(3, WIDTH, WIDTH, generator=RANDOM, dtype=torch.float64) / 4


def project(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return queries, keys and values, [3, …, WIDTH]."""
    return torch.stack([(IDS[tokens] + PLACES[positions]) @ weights for weights in WEIGHTS])


def causal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def documents_alone(tokens: torch.Tensor) -> torch.Tensor:
    """Return what each piece of a document gives that is attended to by itself, one after another."""
    pieces = [torch.tensor(run) for run in runs(tokens, SEQ_LEN)]
    return torch.cat([causal(*project(piece, torch.arange(len(piece)))[:, None])[0] for piece in pieces])


def by_cu_seqlens(batch: dict[str, Any]) -> torch.Tensor:
    """Do what a varlen kernel does: each stretch between two entries by itself."""
    packed = project(batch["tokens"][:, :SEQ_LEN].flatten(), batch["positions"][:, :SEQ_LEN].flatten())
    out = torch.full_like(packed[0], torch.nan)
    for start, stop in pairwise(batch["cu_seqlens"].tolist()):
        assert stop - start <= batch["max_seqlen"]
        out[start:stop] = causal(*packed[:, None, start:stop])[0]
    return out


def by_block_mask(batch: dict[str, Any]) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    queries, keys, values = project(batch["tokens"][:, :SEQ_LEN], batch["positions"][:, :SEQ_LEN])[:, :, None]
    mask = block_mask(batch["segment_ids"], SEQ_LEN, block_size=8)
    return flex_attention(queries, keys, values, block_mask=mask).flatten(0, 2)


def by_rows(batch: dict[str, Any]) -> torch.Tensor:
    """Attend over whole rows: what shall not be."""
    return causal(*project(batch["tokens"][:, :SEQ_LEN], batch["positions"][:, :SEQ_LEN])).flatten(0, 1)


WAYS = pytest.mark.parametrize("attend", [by_cu_seqlens, by_block_mask])


def toy_batch() -> dict[str, Any]:
    with Loader(numbered_plan(SEQ_LEN), batch_size=4, device="cpu", cu_seqlens=True, max_documents=40) as loader:
        return next(loader)


@WAYS
@pytest.mark.filterwarnings(UNCOMPILED)
def test_a_document_in_a_row_gives_what_it_gives_alone(attend: Any) -> None:
    batch = toy_batch()
    assert len(runs(batch["tokens"], SEQ_LEN)) > 8
    expected = documents_alone(batch["tokens"])
    torch.testing.assert_close(attend(batch), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(by_rows(batch), expected, rtol=0, atol=1e-2)


@WAYS
@pytest.mark.filterwarnings(UNCOMPILED)
def test_a_changed_token_changes_its_own_document_only(attend: Any) -> None:
    batch = toy_batch()
    lengths = [len(run) for run in runs(batch["tokens"], SEQ_LEN)]
    before, rows_before = attend(batch), by_rows(batch)
    start, leaks = 0, False
    for length in lengths:
        stop = start + length
        row, column = divmod(start, SEQ_LEN)
        changed = batch | {"tokens": batch["tokens"].clone()}
        changed["tokens"][row, column] += 50 * 7
        differs = (attend(changed) != before).any(dim=1)
        assert differs[start:stop].all()
        assert not differs[:start].any()
        assert not differs[stop:].any()
        leaks = leaks or bool((by_rows(changed) != rows_before)[stop : (row + 1) * SEQ_LEN].any())
        start = stop
    assert leaks  # over whole rows it would have changed others


@pytest.mark.filterwarnings(UNCOMPILED)
def test_padding_gives_nothing_and_takes_nothing() -> None:
    with Loader(numbered_plan(), batch_size=4, num_samples=2, last="pad", device="cpu", cu_seqlens=True) as loader:
        batch = next(loader)
    real = documents_alone(batch["tokens"][:2])
    found = by_block_mask(batch)
    torch.testing.assert_close(found[: 2 * SEQ_LEN], real, rtol=0, atol=1e-12)
    assert (found[2 * SEQ_LEN :] == 0).all()
    found = by_cu_seqlens(batch)
    torch.testing.assert_close(found[: 2 * SEQ_LEN], real, rtol=0, atol=1e-12)
    assert torch.isfinite(found).all()  # padding too is written


@pytest.mark.filterwarnings(UNCOMPILED)
def test_the_mask_joins_with_others() -> None:
    """Within a document and a sliding window of 3 tokens."""
    from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention

    batch = toy_batch()
    queries, keys, values = project(batch["tokens"][:, :SEQ_LEN], batch["positions"][:, :SEQ_LEN])[:, :, None]
    both = and_masks(document_mask_mod(batch["segment_ids"]), lambda b, h, q, kv: q - kv < 3)
    mask = create_block_mask(both, 4, 1, SEQ_LEN, SEQ_LEN, device="cpu", BLOCK_SIZE=8)
    found = flex_attention(queries, keys, values, block_mask=mask).flatten(0, 2)
    start = 0
    for run in runs(batch["tokens"], SEQ_LEN):
        piece = torch.tensor(run)
        q, k, v = project(piece, torch.arange(len(piece)))
        for place in range(len(piece)):
            near = slice(max(place - 2, 0), place + 1)
            expected = ((k[near] @ q[place]) / WIDTH**0.5).softmax(0) @ v[near]
            torch.testing.assert_close(found[start + place], expected, rtol=0, atol=1e-12)
        start += len(piece)
