import torch

from tests.engines.mindspore.cases.case import Case, aten, case, floats

x = floats(2, 4, 8, 8)
flat = torch.relu(floats(2, 4, 8, 8))  # many equal zeros in a window
one, two, three = [0], [0, 0], [0, 0, 0]

CASES: list[Case] = [
    case(aten.convolution.default, x, floats(6, 4, 3, 3), floats(6), [1, 1], [1, 1], [1, 1], False, two, 1),
    case(aten.convolution.default, x, floats(6, 4, 3, 2), None, [2, 1], [0, 1], [1, 2], False, two, 1),
    case(aten.convolution.default, x, floats(4, 1, 3, 3), floats(4), [1, 1], [1, 1], [1, 1], False, two, 4),
    case(aten.convolution.default, x, floats(6, 2, 3, 3), floats(6), [2, 2], [3, 3], [1, 1], False, two, 2),
    case(aten.convolution.default, x.double(), floats(2, 4, 3, 3).double(), None, [1, 1], two, [1, 1], False, two, 1),
    case(aten.convolution.default, floats(2, 4, 9), floats(6, 4, 3), floats(6), [2], [1], [1], False, one, 1),
    case(
        aten.convolution.default,
        *(floats(1, 2, 4, 4, 4), floats(3, 2, 2, 2, 2), floats(3), [1] * 3, [1] * 3, [1] * 3, False, three, 1),
    ),
    case(aten.convolution.default, x, floats(4, 3, 3, 3), floats(3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    case(aten.convolution.default, x, floats(4, 3, 3, 3), None, [1, 2], [0, 2], [2, 1], True, [0, 1], 2),
    case(aten.convolution.default, floats(2, 4, 5), floats(4, 3, 3), None, [2], [0], [1], True, one, 1),
    case(aten.max_pool2d_with_indices.default, x, [2, 2]),
    case(aten.max_pool2d_with_indices.default, flat, [3, 3], [2, 2], [1, 1]),
    case(aten.max_pool2d_with_indices.default, x, [3, 2], [2, 2], [1, 0], [2, 1], True),
    case(aten.max_pool2d_with_indices.default, floats(3, 7, 7), [2, 2], [2, 2], two, [1, 1], True),
    case(aten.max_pool3d_with_indices.default, floats(1, 2, 4, 4, 4), [2, 2, 2]),
    case(aten.avg_pool1d.default, floats(2, 3, 8), [2]),
    case(aten.avg_pool2d.default, x, [2, 2]),
    case(aten.avg_pool2d.default, x, [3, 3], [2, 2], [1, 1]),
    case(aten.avg_pool2d.default, x, [3, 3], [2, 2], [1, 1], True, False),
    case(aten.avg_pool2d.default, x, [3, 3], [2, 2], [1, 1], True, True),
    case(aten.avg_pool2d.default, x, [2, 2], [2, 2], two, False, True, 3),
    case(aten.avg_pool3d.default, floats(1, 2, 4, 4, 4), [2, 2, 2]),
    case(aten._adaptive_avg_pool2d.default, x, [3, 5]),
    case(aten._adaptive_avg_pool2d.default, x, [1, 1]),
    case(aten._adaptive_avg_pool3d.default, floats(1, 2, 4, 5, 6), [2, 2, 4]),
    case(aten.adaptive_avg_pool1d.default, floats(2, 3, 7), [3]),
    case(aten.adaptive_max_pool2d.default, x, [4, 2]),
    case(aten.upsample_nearest1d.default, floats(2, 3, 5), [8]),
    case(aten.upsample_nearest1d.vec, floats(2, 3, 5), None, [2.0]),
    case(aten.upsample_nearest2d.default, x, [12, 5]),
    case(aten.upsample_nearest2d.vec, x, None, [2.0, 2.0]),
    case(aten.upsample_linear1d.default, floats(2, 3, 5), [8], True),
    case(aten.upsample_linear1d.vec, floats(2, 3, 5), None, False, [1.7]),
    case(aten.upsample_bilinear2d.default, x, [12, 5], False),
    case(aten.upsample_bilinear2d.vec, x, None, True, [2.0, 1.5]),
    case(aten.upsample_bilinear2d.vec, x, [5, 9], False, None),
    case(aten.upsample_bicubic2d.default, x, [12, 5], False),
    case(aten.upsample_bicubic2d.vec, x, None, False, [2.0, 1.5]),
]
