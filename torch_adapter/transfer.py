"""Host to device: a ring of pinned buffers, a copy stream, events.

    numpy rows ──▶ pinned buffer ──copy stream──▶ device, narrow ──widen──▶ tensors ──event──▶ the stream that uses them

A buffer is written again only after the copy out of it is done (``Copied.wait``); a batch is handed out only after the using stream has been
told to wait for its copy (``Copied.order``). The device is behind ``Engine``, so that a machine without one can test this by an engine that
completes its copies when it is told to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy.typing as npt
import torch

from torch_adapter.widen import Tensors


class Copied(Protocol):
    """A copy under way."""

    def wait(self) -> None:
        """Return when the copy is done: the host's memory may be written again."""
        ...

    def order(self, tensors: Tensors) -> None:
        """Make the stream that is current now wait for the copy, and keep the tensors' memory until it has used them."""
        ...


class Engine(Protocol):
    """What a device can do."""

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Return host memory of a tensor's shape and dtype that copies can start from without blocking."""
        ...

    def copy(self, hosts: Tensors, finish: Callable[[Tensors], Tensors]) -> tuple[Tensors, Copied]:
        """Begin copying, ``finish`` the copies on the device, and return what comes of it."""
        ...


class Ring:
    """Send batches ahead through ``slots`` sets of host buffers, made on first use; memory on the host: slots batches."""

    def __init__(self, engine: Engine, finish: Callable[[Tensors], Tensors], slots: int) -> None:
        self._engine = engine
        self._finish = finish
        self._free: deque[tuple[Tensors | None, Copied | None]] = deque([(None, None)] * slots)

    def send(self, batch: Mapping[str, npt.NDArray[Any]]) -> tuple[Tensors, Copied]:
        """Begin the transfer of a batch; waits for the copy that last used the same buffers."""
        hosts, copied = self._free.popleft()
        self._free.append((None, None))  # buffers that a failed copy may still read are not used again
        if copied is not None:
            copied.wait()
        rows = {key: torch.from_numpy(array) for key, array in batch.items()}
        if hosts is None or any(hosts[key].shape != tensor.shape for key, tensor in rows.items()):
            hosts = {key: self._engine.buffer(tensor) for key, tensor in rows.items()}
        for key, tensor in rows.items():
            hosts[key].copy_(tensor)
        tensors, copied = self._engine.copy(hosts, self._finish)
        self._free[-1] = hosts, copied
        return tensors, copied


class Arrived:
    """No copy is under way: for batches that nothing is staged for."""

    def wait(self) -> None:
        """See Copied."""

    def order(self, tensors: Tensors) -> None:
        """See Copied."""


class AcceleratorEngine:
    """A cuda or xpu device: pinned memory, a stream of its own for copies, an event a batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        """See Engine."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def copy(self, hosts: Tensors, finish: Callable[[Tensors], Tensors]) -> tuple[Tensors, Copied]:
        """See Engine."""
        before = torch.accelerator.current_stream(self._device)
        number = torch.accelerator.current_device_index()  # setting a stream makes its device the current one
        torch.accelerator.set_stream(self._stream)
        try:
            tensors = finish({key: host.to(self._device, non_blocking=True) for key, host in hosts.items()})
            event = torch.Event(device=self._device)
            event.record(self._stream)
        finally:
            torch.accelerator.set_stream(before)
            torch.accelerator.set_device_index(number)
        return tensors, _Event(event, self._device)


class _Event:
    def __init__(self, event: torch.Event, device: torch.device) -> None:
        self._event = event
        self._device = device

    def wait(self) -> None:
        self._event.synchronize()

    def order(self, tensors: Tensors) -> None:
        stream = torch.accelerator.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in tensors.values():
            tensor.record_stream(stream)
