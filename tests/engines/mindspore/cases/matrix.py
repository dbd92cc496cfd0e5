import torch

from tests.engines.mindspore.cases.case import Case, aten, bools, case, floats, positive

x = floats(2, 6, 4, 4)
q, k, v = floats(2, 4, 5, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 8)
grouped = floats(2, 2, 6, 8)

CASES: list[Case] = [
    case(aten.mm.default, floats(3, 4), floats(4, 5)),
    case(aten.mm.default, floats(3, 4, dtype=torch.float64), floats(4, 5, dtype=torch.float64)),
    case(aten.bmm.default, floats(2, 3, 4), floats(2, 4, 5)),
    case(aten.mv.default, floats(3, 4), floats(4)),
    case(aten.dot.default, floats(4), floats(4)),
    case(aten.matmul.default, floats(2, 3, 4), floats(4, 5)),
    case(aten.addmm.default, floats(5), floats(3, 4), floats(4, 5)),
    case(aten.addmm.default, floats(3, 5), floats(3, 4), floats(4, 5), beta=0.5, alpha=2),
    case(aten.addmv.default, floats(3), floats(3, 4), floats(4)),
    case(aten.baddbmm.default, floats(2, 3, 5), floats(2, 3, 4), floats(2, 4, 5), beta=0, alpha=0.5),
    case(aten.linear.default, floats(2, 3, 4), floats(5, 4), floats(5)),
    case(aten.linear.default, floats(3, 4), floats(5, 4)),
    case(aten.scaled_dot_product_attention.default, q, k, v),
    case(aten.scaled_dot_product_attention.default, q, k, v, None, 0.0, True),
    case(aten.scaled_dot_product_attention.default, q, k, v, torch.cat([bools(5, 5), torch.ones(5, 1).bool()], 1)),
    case(aten.scaled_dot_product_attention.default, q, k, v, floats(5, 6), scale=0.3),
    case(aten.scaled_dot_product_attention.default, q, grouped, grouped, enable_gqa=True),
    case(aten.native_layer_norm.default, floats(2, 3, 8), [8], floats(8), floats(8), 1e-5),
    case(aten.native_layer_norm.default, floats(2, 3, 8), [3, 8], None, None, 1e-5),
    case(aten._fused_rms_norm.default, floats(2, 8), [8], floats(8), 1e-6),
    case(aten._fused_rms_norm.default, floats(2, 8), [8], None, None),
    case(aten.native_group_norm.default, x, floats(6), floats(6), 2, 6, 16, 3, 1e-5),
    case(aten.native_group_norm.default, x, None, None, 2, 6, 16, 2, 1e-5),
    case(
        aten._native_batch_norm_legit_functional.default,
        *(x, floats(6), floats(6), torch.zeros(6), torch.ones(6), True, 0.1, 1e-5),
        still=(3, 4),
    ),
    case(
        aten._native_batch_norm_legit_functional.default,
        *(floats(4, 3), floats(3), floats(3), torch.zeros(3), torch.ones(3), True, 0.3, 1e-5),
        still=(3, 4),
    ),
    case(
        aten._native_batch_norm_legit_functional.default,
        *(floats(4, 3), None, None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5),
        still=(1, 2),
        outputs=1,
    ),
    case(aten._native_batch_norm_legit.no_stats, x, floats(6), floats(6), True, 0.1, 1e-5),
    case(
        aten._native_batch_norm_legit_no_training.default,
        *(x, floats(6), floats(6), floats(6), positive(6), 0.1, 1e-5),
        still=(3, 4),
        outputs=1,
    ),
]
