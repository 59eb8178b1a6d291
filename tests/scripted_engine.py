"""A device for the torch loader whose copies are done when the test says so, or when somebody waits for them: at the latest moment allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from torch_adapter import Loader
from torch_adapter.transfer import Ring
from torch_adapter.widen import Tensors, widen_tensors


class Copy:
    """A copy that reads the host's memory only when it is completed, as a device may; until then its tensors hold nothing of it."""

    def __init__(self, hosts: Tensors, finish: Callable[[Tensors], Tensors]) -> None:
        self.hosts, self.finish, self.done, self.ordered = hosts, finish, False, False
        self.tensors = {
            key: rows.clone() for key, rows in finish({key: torch.zeros_like(h) for key, h in hosts.items()}).items()
        }

    def complete(self) -> None:
        if not self.done:
            for key, rows in self.finish(self.hosts).items():
                self.tensors[key].copy_(rows)
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
        self.copies.append(Copy(hosts, finish))
        return self.copies[-1].tensors, self.copies[-1]


def send_through_a_script(loader: Loader, depth: int = 2) -> ScriptedEngine:
    """Make a loader, not yet iterated, send ahead as it does to an accelerator."""
    engine = ScriptedEngine()
    loader._send = Ring(engine, partial(widen_tensors, dtype=loader.dtype), slots=depth + 1).send
    loader.depth = depth
    return engine
