"""A rendezvous for the processes of one machine that nobody else can reach.

torchrun's own, with ``--standalone`` too, listens on every network interface: ``TCPStore`` binds to ``[::]`` whatever
address it is given, unless it is handed a socket that is bound already.
"""

from __future__ import annotations

import socket

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

NAME = "trainwright-loopback"
_HOST = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """One node, and a store that listens on 127.0.0.1; each attempt has a new one, so that nothing old is in it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store: dist.TCPStore | None = None

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        listener = socket.create_server((_HOST, 0), backlog=4096)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            _HOST, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
        )
        return RendezvousInfo(dist.PrefixStore(self._run_id, self._store), 0, 1, RendezvousStoreInfo(_HOST, port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def register() -> None:
    """Let torchrun know it as ``--rdzv-backend=trainwright-loopback``."""

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        return LoopbackRendezvous(parameters.run_id)

    rendezvous_handler_registry.register(NAME, create)
