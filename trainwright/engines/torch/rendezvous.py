"""Where the processes of a run find each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist


def store_of_this_attempt(timeout: timedelta, environment: Mapping[str, str] = os.environ) -> dist.Store | None:
    """A place of its own in torchrun's store for each attempt; None where torch's own way is right.

    torchrun keeps its store when it starts the processes again, and a new process may read from it the address of one
    that has died (torch 2.13: "Gloo connectFullMesh failed ... Connection refused", one restart in five). On several
    machines the attempts are counted differently; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each a new store.
    """
    is_shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not is_shared or environment.get("GROUP_WORLD_SIZE") != "1":
        return None
    store = dist.TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), is_master=False, timeout=timeout)
    return dist.PrefixStore(f"attempt-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
