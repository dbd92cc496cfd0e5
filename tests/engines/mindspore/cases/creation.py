import torch

from tests.engines.mindspore.cases.case import Case, aten, bools, case, floats, whole

x = floats(2, 3)
CPU = torch.device("cpu")

CASES: list[Case] = [
    case(aten.arange.default, 5, device=CPU, pin_memory=False),
    case(aten.arange.start, 1, 5, dtype=torch.float32),
    case(aten.arange.start_step, 1, 5, 2, dtype=torch.int64, layout=torch.strided, device=CPU, pin_memory=False),
    case(aten.linspace.default, 0, 1, 5),
    case(aten.eye.default, 3),
    case(aten.eye.m, 2, 3),
    case(aten.full.default, [2, 3], -float("inf"), dtype=torch.float32),
    case(aten.full.default, [2], True),
    case(aten.full.default, [], 7, dtype=torch.int64),
    case(aten.zeros.default, [2, 0]),
    case(aten.ones.default, [2], dtype=torch.bool),
    case(aten.scalar_tensor.default, 0.5, dtype=torch.float64, device=CPU),
    case(aten.empty.memory_format, [2, 3], outputs=0),
    case(aten.full_like.default, x, 2),
    case(aten.full_like.default, whole(3), 1.5, dtype=torch.float32),
    case(aten.zeros_like.default, x),
    case(aten.ones_like.default, bools(3)),
    case(aten.empty_like.default, x, outputs=0),
    case(aten.new_full.default, x, [2], 3.5),
    case(aten.new_zeros.default, whole(3), [2]),
    case(aten.new_ones.default, x, [2], dtype=torch.int64),
    case(aten.new_empty.default, x, [2], outputs=0),
    case(aten.fill.Scalar, x, 2),
    case(aten.fill.Tensor, x, torch.tensor(0.5)),
    case(aten._assert_tensor_metadata.default, x, None, None, torch.float32),
]
