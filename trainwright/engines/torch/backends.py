"""Backends: one process, or several that train one model together."""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.core.children import end_with_parent
from trainwright.engines.torch.rendezvous import store_of_this_attempt

#: Bytes that are exchanged at once: large enough to be quick, small enough not to need the model's size again.
_BUCKET_BYTES = 64 * 2**20


class SingleProcess:
    """One process on one device: nothing to exchange. A base for backends of your own.

    >>> class Noisy(SingleProcess):
    ...     def reduce_gradients(self, parameters):
    ...         for parameter in parameters:
    ...             if parameter.grad is not None:
    ...                 parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-3)
    """

    name = "sp"
    rank = local_rank = 0
    world_size = 1

    def start(self, args: TrainingArguments) -> None: ...

    def share(self, tensors: Iterable[Tensor]) -> None: ...

    def reduce_gradients(self, parameters: Iterable[Tensor]) -> None: ...

    def sum(self, value: Any) -> Any:
        return value

    def gather(self, value: object) -> list[Any]:
        return [value]

    def barrier(self) -> None: ...

    def get_state(self) -> dict[str, Any]:
        return {}

    def update_state(self, state: dict[str, Any]) -> None: ...


class DistributedProcesses(SingleProcess):
    """Several processes started by torchrun, each with its part of every batch.

    Gradients are summed once, after a step's last backward pass, in buckets: whatever a process did before (pieces of a
    batch, a step that was done again because it did not fit) is nobody else's business. Nothing wraps the model.
    """

    name = "ddp"

    def __init__(self, rank: int, local_rank: int, world_size: int, communication: str | None = None) -> None:
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        self.communication = communication
        self._started_here = False
        self._device = torch.device("cpu")
        #: For what is in main memory, where the group itself only moves what is on devices.
        self._host: Any = None

    def start(self, args: TrainingArguments) -> None:
        self._device = args.device
        if "TORCHELASTIC_RUN_ID" in os.environ and ours(args).handle_signals:
            # torchrun that is killed would leave its processes behind, which would go on in a folder of others.
            end_with_parent(signal.SIGTERM)
        if not dist.is_initialized():
            self._start_group(args)
        if self._host is None and not _moves_host_memory():
            self._host = dist.new_group(backend="gloo", timeout=timedelta(seconds=args.ddp_timeout))

    def _start_group(self, args: TrainingArguments) -> None:
        if self.world_size == 1:
            # One process that shards all the same, on one GPU say: there is nobody to find.
            dist.init_process_group(self._chosen(), store=dist.HashStore(), rank=0, world_size=1)
            self._started_here = True
            atexit.register(self.close)
            return
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ValueError(
                f"{self.world_size} processes were started, but {' and '.join(missing)} not set, so they cannot find "
                "each other: use torchrun, which sets them, or export the first machine's address and a free port."
            )
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        timeout = timedelta(seconds=args.ddp_timeout)
        dist.init_process_group(
            self._chosen(),
            store=store_of_this_attempt(timeout),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
        )
        self._started_here = True
        # Evaluations after training still use the group. Left open, NCCL complains and gloo's threads may abort the
        # process when it ends (5 of 28 runs of a script that only sums a tensor; none of 28 if it is closed).
        atexit.register(self.close)

    def _chosen(self) -> str:
        return self.communication or {"cuda": "cpu:gloo,cuda:nccl"}.get(self._device.type, "gloo")

    def _group(self, tensor: Tensor) -> Any:
        return self._host if tensor.is_cpu else None

    def share(self, tensors: Iterable[Tensor]) -> None:
        # Together: a quantized model has hundreds of ranges, each a single number.
        with torch.no_grad():
            for bucket in _buckets(list(tensors)):
                if len(bucket) == 1 and bucket[0].is_contiguous():
                    dist.broadcast(bucket[0], src=0, group=self._group(bucket[0]))
                    continue
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                dist.broadcast(flat, src=0, group=self._group(flat))
                for tensor, sent in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                    tensor.copy_(sent.view_as(tensor))

    def reduce_gradients(self, parameters: Iterable[Tensor]) -> None:
        # A process without samples in this step has no gradients, but the others wait for its zeros.
        every = [p for p in parameters if p.requires_grad]
        kinds = torch.tensor([_kind(p.grad) for p in every], dtype=torch.uint8)
        dist.all_reduce(kinds, op=dist.ReduceOp.MAX, group=self._host)
        pairs = list(zip(every, kinds.tolist(), strict=True))
        for parameter in (p for p, kind in pairs if kind == _SPARSE):
            parameter.grad = self._sum_of_sparse(_rows_of(parameter))
        for bucket in _buckets([p for p, kind in pairs if kind == _DENSE]):
            gradients = []
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=self._group(flat))
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, summed in zip(gradients, flat.split(sizes), strict=True):
                gradient.copy_(summed.view_as(gradient))

    def _sum_of_sparse(self, gradient: Tensor) -> Tensor:
        """Of an embedding's rows, of which each process has others; in the order of processes, as sums depend on it."""
        counts = self.gather(gradient._nnz())
        missing = max(counts) - gradient._nnz()
        parts = []
        for own in (gradient.indices().t(), gradient.values()):
            padded = torch.cat([own, own.new_zeros((missing, *own.shape[1:]))])
            every = [torch.empty_like(padded) for _ in counts]
            dist.all_gather(every, padded, group=self._group(padded))
            parts.append(torch.cat([part[:count] for part, count in zip(every, counts, strict=True)]))
        return torch.sparse_coo_tensor(parts[0].t(), parts[1], gradient.shape).coalesce()

    def sum(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            total = value.detach().clone()
            dist.all_reduce(total, group=self._group(total))
            return total
        # In main memory, so that no device is waited for.
        total = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        dist.all_reduce(total, group=self._host)
        return total.item()

    def gather(self, value: object) -> list[Any]:
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, value, group=self._host)
        return parts

    def barrier(self) -> None:
        dist.barrier(group=self._host)

    def close(self) -> None:
        """Leave the group, if it was made here."""
        if self._started_here and dist.is_initialized():
            dist.destroy_process_group()
            # What still refers to the group must not outlive the interpreter.
            gc.collect()
            self._started_here = False
            self._host = None


def _moves_host_memory() -> bool:
    """Whether the group that there is takes tensors in main memory."""
    return "cpu" in str(dist.get_backend_config()) or dist.get_backend() in ("gloo", "mpi")


_NONE, _DENSE, _SPARSE = 0, 1, 2


def _kind(gradient: Tensor | None) -> int:
    if gradient is None:
        return _NONE
    return _SPARSE if gradient.is_sparse else _DENSE


def _rows_of(parameter: Tensor) -> Tensor:
    """The sparse gradient of ``parameter``; without any rows, where it has none."""
    if parameter.grad is not None:
        return parameter.grad.coalesce()
    indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.new_zeros((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, values, parameter.shape).coalesce()


def _buckets(parameters: list[Tensor]) -> Iterable[list[Tensor]]:
    """Parameters of one type, a bucket's worth at a time."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in sorted(parameters, key=lambda p: str(p.dtype)):
        weight = parameter.numel() * parameter.element_size()
        if bucket and (size + weight > _BUCKET_BYTES or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += weight
    if bucket:
        yield bucket
