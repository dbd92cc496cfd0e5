import torch

from tests.engines.mindspore.cases.case import Case, aten, bools, case, floats, whole

x = floats(3, 4, 5)
rows, columns = torch.tensor([[0, 2], [1, -1]]), torch.tensor([3, 0])
once = torch.tensor([2, 0])
tokens = whole(2, 6, low=0, high=7)

CASES: list[Case] = [
    case(aten.index.Tensor, x, [rows]),
    case(aten.index.Tensor, x, [None, columns]),
    case(aten.index.Tensor, x, [rows, columns]),
    case(aten.index.Tensor, x, [rows, None, columns]),
    case(aten.index.Tensor, x, [None, rows, columns]),
    case(aten.index.Tensor, whole(3, 4), [once, columns]),
    case(aten.index.Tensor, bools(3, 4), [once]),
    case(aten._unsafe_index.Tensor, x, [None, None, columns]),
    case(aten.index_put.default, x, [once], floats(2, 4, 5)),
    case(aten.index_put.default, x, [None, columns], torch.tensor(2.5)),
    case(aten.index_put.default, x, [rows, None, columns], floats(2, 2, 4), True),
    case(aten.index_put.default, whole(5), [once], whole(2)),
    case(aten.index_put.default, x, [bools(3, 4)], torch.tensor(0.5)),
    case(aten.index_put.default, x, [once, columns], floats(5)),
    case(aten._unsafe_index_put.default, x, [torch.tensor([1, 1, 1])], floats(3, 4, 5), True),
    case(aten.index_select.default, x, 1, columns),
    case(aten.index_select.default, whole(3, 4), -1, columns),
    case(aten.index_add.default, x, 1, torch.tensor([1, 1]), floats(3, 2, 5), alpha=2),
    case(aten.gather.default, x, 1, whole(3, 2, 5, low=0, high=4)),
    case(aten.gather.default, x, -1, whole(2, 3, 7, low=0, high=5)),
    case(aten.gather.default, whole(3, 4), 1, whole(3, 1, low=0, high=4)),
    case(aten.scatter.src, x, 1, torch.tensor([[[0], [3]]]), floats(1, 2, 1)),
    case(aten.scatter.value, x, 2, torch.tensor([[[0, 3]]]), 1.5),
    case(aten.scatter.value, whole(3, 4), 1, torch.tensor([[0], [1], [2]]), 7),
    case(aten.scatter_add.default, x, 0, whole(2, 4, 5, low=0, high=3), floats(2, 4, 5)),
    case(aten.embedding.default, floats(7, 3), tokens),
    case(aten.embedding.default, floats(7, 3), tokens, 2),
    case(aten.embedding.default, floats(7, 3), tokens.int(), 0),
    case(aten.where.self, bools(3, 4), floats(3, 4), floats(4)),
    case(aten.where.self, bools(4), whole(4), floats(4)),
    case(aten.where.self, bools(4), floats(4), torch.tensor(-float("inf")), grad=False),
    case(aten.where.self, bools(4), bools(4), bools(4)),
    case(aten.where.ScalarOther, bools(4), floats(4), 0.5),
    case(aten.where.ScalarSelf, bools(4), 1, whole(4)),
    case(aten.where.Scalar, bools(4), 0.5, -1.0),
    case(aten.masked_fill.Scalar, x, bools(4, 5), -float("inf"), grad=False),
    case(aten.masked_fill.Scalar, x, bools(4, 5), -1e9),
    case(aten.masked_fill.Scalar, whole(4), bools(4), 3),
    case(aten.masked_fill.Tensor, x, bools(3, 4, 1), torch.tensor(0.5)),
]
