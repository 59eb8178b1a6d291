"""Batches in the trainers' shapes: on paper, through DataLoader, and into transformers' models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset, causal_lm, inputs_and_targets, megatron, torchtitan  # noqa: E402

OF_IMPORTS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def plan_on_paper(**options: Any) -> nc.Plan:
    """Documents 5 6 0 | 7 8 9 0 | 3 …, in file order: the first row of 8 is that of Megatron's documented example."""
    documents = [[5, 6, 0], [7, 8, 9, 0], [3, 1, 2, 0], [4, 4, 0], [1, 0], [2, 2, 2, 2, 0]]
    corpus = nc.memory_corpus([np.array(each) for each in documents], vocab_size=16)
    return nc.Plan(nc.Source(corpus), **({"seq_len": 7, "shuffle": "none", "documents": True} | options))


def padded(plan: nc.Plan) -> dict[str, Any]:
    """The first batch of 2 rows of a pass of one sample: the second row is padding."""
    with Loader(plan, batch_size=2, num_samples=1, last="pad", device="cpu") as loader:
        return next(loader)


def test_transformers_labels_are_the_inputs_again_with_no_loss_where_there_is_none() -> None:
    plan = plan_on_paper()
    shaped = causal_lm(padded(plan), plan)
    assert {key: rows.tolist() for key, rows in shaped.items()} == {
        "input_ids": [[5, 6, 0, 7, 8, 9, 0, 3], [0] * 8],
        "labels": [[-100, 6, 0, 7, 8, 9, 0, 3], [-100] * 8],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3, 0], [0] * 8],
    }
    assert all(rows.dtype == torch.int64 for rows in shaped.values())
    whole = plan_on_paper(documents=False)
    assert set(causal_lm(padded(whole), whole)) == {"input_ids", "labels"}


def test_megatrons_labels_are_shifted_and_its_loss_mask_is_floats() -> None:
    plan = plan_on_paper()
    shaped = megatron(padded(plan), plan, cu_seqlens=True)
    assert {key: rows.tolist() for key, rows in shaped.items()} == {
        "tokens": [[5, 6, 0, 7, 8, 9, 0], [0] * 7],
        "labels": [[6, 0, 7, 8, 9, 0, 3], [0] * 7],
        "loss_mask": [[1.0] * 7, [0.0] * 7],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3], [0] * 7],
        "cu_seqlens": [[0, 3, 7, 7, 7, 7, 7, 7], [0, 7, 7, 7, 7, 7, 7, 7]],
        "max_seqlen": [4, 7],
    }
    assert shaped["loss_mask"].dtype == torch.float32
    assert shaped["cu_seqlens"].dtype == torch.int32
    without = plan_on_paper(documents=False)
    assert megatron(padded(without), without)["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6]] * 2
    with pytest.raises(ValueError, match="documents=True"):
        megatron(padded(without), without, cu_seqlens=True)


def test_torchtitans_labels_are_shifted_and_hold_no_loss() -> None:
    plan = plan_on_paper()
    inputs, labels = torchtitan(padded(plan), plan)
    assert inputs["input"].tolist() == [[5, 6, 0, 7, 8, 9, 0], [0] * 7]
    assert inputs["positions"].tolist() == [[0, 1, 2, 0, 1, 2, 3], [0] * 7]
    assert labels.tolist() == [[6, 0, 7, 8, 9, 0, 3], [-100] * 7]


def test_tokens_behind_the_targets_are_no_inputs_and_no_targets() -> None:
    plan = plan_on_paper(extra_tokens=2)
    inputs, targets = inputs_and_targets(padded(plan), plan)
    assert inputs[0].tolist() == [5, 6, 0, 7, 8, 9, 0]
    assert targets[0].tolist() == [6, 0, 7, 8, 9, 0, 3]
    assert causal_lm(padded(plan), plan)["input_ids"].shape == (2, 8)


def test_a_shape_does_not_write_into_the_batch() -> None:
    plan = plan_on_paper()
    batch = padded(plan)
    before = {key: rows.clone() for key, rows in batch.items()}
    causal_lm(batch, plan), megatron(batch, plan), torchtitan(batch, plan)
    assert all(torch.equal(batch[key], rows) for key, rows in before.items())


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_dataset_in_megatrons_shape_serves_any_index_alone_and_through_workers(
    workers: int, context: str | None
) -> None:
    plan = plan_on_paper(shuffle="global", seed=5)
    dataset = MapDataset(plan, 12, shape=partial(megatron, cu_seqlens=True))
    rows = plan.read(np.arange(12))
    assert dataset[7]["labels"].tolist() == rows["tokens"][7, 1:].tolist()
    assert dataset[-5]["cu_seqlens"].shape == (8,)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    assert torch.cat([batch["tokens"] for batch in batches]).tolist() == rows["tokens"][:, :7].tolist()
    assert torch.cat([batch["position_ids"] for batch in batches]).tolist() == rows["positions"][:, :7].tolist()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_loader_is_saved_and_restored_by_torchs_distributed_checkpoint(tmp_path: Path) -> None:
    """As torchtitan does it: a Stateful under a key, restored at another batch size."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    plan = plan_on_paper(shuffle="global", seed=5)
    with Loader(plan, batch_size=4, device="cpu") as loader, Loader(plan, batch_size=2, device="cpu") as other:
        for _ in range(3):
            next(loader)
        checkpoint.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
        checkpoint.load({"loader": other}, checkpoint_id=tmp_path, no_dist=True)
        assert next(other)["sample"].tolist() == [12, 13]


# transformers.


def tiny_llama(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def text_plan(**options: Any) -> nc.Plan:
    random = np.random.default_rng(3)
    corpus = nc.memory_corpus([random.integers(0, 64, n) for n in random.integers(1, 12, 80)], vocab_size=64)
    return nc.Plan(nc.Source(corpus), **({"seq_len": 15, "seed": 9, "documents": True} | options))


@OF_IMPORTS
def test_a_transformers_model_has_the_loss_of_our_inputs_and_targets() -> None:
    """Its shift is inside: over the same rows its loss is the cross entropy of logits and targets."""
    plan, model = text_plan(documents=False), tiny_llama()
    with Loader(plan, batch_size=4, num_samples=6, last="pad", device="cpu") as loader:
        for batch in loader:
            inputs, targets = inputs_and_targets(batch, plan)
            logits = model(input_ids=inputs).logits
            each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            expected = each[batch["loss_mask"].flatten()].mean()
            assert torch.allclose(model(**causal_lm(batch, plan)).loss, expected, atol=1e-5)


@OF_IMPORTS
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_in_a_transformers_model_documents_in_one_row_do_not_see_each_other(attention: str) -> None:
    plan, model = text_plan(), tiny_llama(attn_implementation=attention)
    with Loader(plan, batch_size=4, device="cpu") as loader:
        batch = next(loader)
    shaped = causal_lm(batch, plan)
    logits = model(**shaped).logits
    for row in range(4):
        for document in batch["segment_ids"][row].unique():
            columns = (batch["segment_ids"][row] == document).nonzero()[:, 0]
            alone = model(input_ids=batch["tokens"][row, columns][None]).logits[0]
            assert torch.allclose(logits[row, columns], alone, atol=1e-4)
