"""Pruning on a GPU: the same exactness, and no waiting for the device in a step that updates no mask."""

from __future__ import annotations

import pytest
import torch

from tests.recipes.pruning.runs import Chain, Training, loss_of, pictures_batch
from tests.recipes.pruning.test_pruning_resume import CASES, compare, thinning

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("case", CASES)
def test_a_stop_changes_nothing_on_a_gpu(case: str) -> None:
    torch.use_deterministic_algorithms(True)
    straight = Training(CASES[case](), device="cuda").run(18)
    saved = Training(CASES[case](), device="cuda").run(7).saved()
    compare(straight, Training(CASES[case](), device="cuda", saved=saved, epoch=7 / 4).run(18))
    for modifier in straight.modifiers:
        for mask in getattr(modifier, "masks", {}).values():
            assert mask.is_cuda


def test_thinning_on_a_gpu() -> None:
    torch.use_deterministic_algorithms(True)
    training = Training(thinning(), build=Chain, batches=pictures_batch, device="cuda").run(18)
    assert training.model.get_submodule("conv1").out_channels == 2
    training.drive.finish()


@pytest.mark.parametrize("case", ["magnitude", "global", "movement", "constant", "rigl", "topkast seldom", "obs"])
def test_steps_between_updates_do_not_wait(case: str) -> None:
    training = Training(CASES[case](), device="cuda").run(4)
    batch = training.batches(4)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        # From step 4 to 5: no update is due.
        loss = loss_of(training.model, batch)
        training.drive.loss(loss).backward()
        training.drive.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
