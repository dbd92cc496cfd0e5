"""Who started this process."""

from __future__ import annotations

import os

_OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))


def is_azureml_mpirun() -> bool:
    """Whether AzureML did, with Open MPI."""
    is_azure = "AZ_BATCH_MASTER_NODE" in os.environ or "AZ_BATCHAI_MPI_MASTER_NODE" in os.environ
    return is_azure and all(name in os.environ for name in _OPEN_MPI)


def is_torch_distributed_launch_via_environment_variables() -> bool:
    """Whether torchrun did."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
