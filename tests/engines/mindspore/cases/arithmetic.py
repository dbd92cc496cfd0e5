import torch

from tests.engines.mindspore.cases.case import Case, aten, bools, case, floats, positive, whole, within

HALF, DOUBLE = torch.float16, torch.float64
x, y = floats(3, 4), floats(3, 4)
ties = torch.tensor([1.0, -2.0, 0.0, 3.0]), torch.tensor([1.0, 2.0, 0.0, -3.0])
special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.5])

CASES: list[Case] = [
    case(aten.add.Tensor, x, y),
    case(aten.add.Tensor, x, floats(4), alpha=2.5),
    case(aten.add.Tensor, x, 2),
    case(aten.add.Tensor, whole(3), 2),
    case(aten.add.Tensor, whole(3), 0.5),
    case(aten.add.Tensor, whole(3), floats(3)),
    case(aten.add.Tensor, whole(3, dtype=torch.int32), whole(3)),
    case(aten.add.Tensor, bools(5), bools(5)),
    case(aten.add.Tensor, bools(5), 1),
    case(aten.add.Tensor, floats(3, dtype=HALF), torch.tensor(1.5)),
    case(aten.add.Tensor, floats(3, dtype=DOUBLE), 0.1),
    case(aten.add.Tensor, floats(3, dtype=DOUBLE), floats(3)),
    case(aten.add.Tensor, floats(2, 0), floats(2, 1)),
    case(aten.add.Scalar, x, 0.3, 2),
    case(aten.sub.Tensor, x, y, alpha=3),
    case(aten.sub.Scalar, whole(4), 1.5),
    case(aten.rsub.Tensor, x, y, alpha=2),
    case(aten.rsub.Scalar, x, 1, 2),
    case(aten.mul.Tensor, x, y),
    case(aten.mul.Tensor, bools(5), bools(5)),
    case(aten.mul.Tensor, bools(4), floats(3, 4)),
    case(aten.mul.Tensor, whole(3), torch.tensor(0.5)),
    case(aten.mul.Scalar, x, 0.1),
    case(aten.mul.Scalar, floats(3, dtype=DOUBLE), 0.1),
    case(aten.div.Tensor, x, positive(3, 4)),
    case(aten.div.Tensor, whole(4), whole(4, low=1)),
    case(aten.div.Scalar, whole(4), 3),
    *(
        case(aten.div.Tensor_mode, a, b, rounding_mode=mode, grad=mode is None)
        for mode in (None, "floor", "trunc")
        for a, b in ((x, positive(3, 4)), (whole(6), torch.tensor([3, -3, 2, -2, 1, 4])))
    ),
    case(aten.div.Scalar_mode, whole(9), -2, rounding_mode="trunc"),
    case(aten.floor_divide.default, whole(9), torch.tensor(2)),
    case(aten.floor_divide.Scalar, whole(9), -2),
    case(aten.remainder.Tensor, floats(6), torch.tensor([1.0, -1.0, 0.3, -0.3, 2.0, 5.0])),
    case(aten.remainder.Scalar, whole(9), -3),
    case(aten.fmod.Tensor, floats(6), torch.tensor([1.0, -1.0, 0.3, -0.3, 2.0, 5.0])),
    case(aten.fmod.Scalar, floats(6), 0.4),
    *(case(aten.pow.Tensor_Scalar, x, exponent) for exponent in (0, 1, 2, 3, 4)),
    *(case(aten.pow.Tensor_Scalar, positive(5), exponent) for exponent in (0.5, -0.5, -1, 1.7, -2)),
    case(aten.pow.Tensor_Scalar, torch.tensor([0.0, -1.0]), 2.0),
    case(aten.pow.Tensor_Scalar, whole(4), 2),
    case(aten.pow.Tensor_Tensor, positive(5), floats(5)),
    case(aten.pow.Scalar, 2.5, floats(5)),
    case(aten.neg.default, x),
    case(aten.neg.default, whole(3)),
    case(aten.abs.default, torch.tensor([-1.5, 0.0, 2.0])),
    case(aten.abs.default, whole(5)),
    case(aten.sign.default, torch.tensor([-1.5, 0.0, 2.0])),
    case(aten.sgn.default, x),
    *(
        case(operation, x)
        for operation in (
            aten.exp.default,
            aten.exp2.default,
            aten.expm1.default,
            aten.sin.default,
            aten.cos.default,
            aten.tan.default,
            aten.atan.default,
            aten.sinh.default,
            aten.cosh.default,
            aten.asinh.default,
            aten.tanh.default,
            aten.sigmoid.default,
            aten.erf.default,
            aten.erfc.default,
        )
    ),
    *(
        case(operation, positive(3, 4, dtype=dtype))
        for operation in (
            aten.log.default,
            aten.log2.default,
            aten.log10.default,
            aten.log1p.default,
            aten.sqrt.default,
            aten.rsqrt.default,
            aten.reciprocal.default,
        )
        for dtype in (torch.float32, DOUBLE)
    ),
    *(case(operation, within(5)) for operation in (aten.asin.default, aten.acos.default, aten.atanh.default)),
    case(aten.acosh.default, positive(5) + 1),
    case(aten.atan2.default, floats(5), floats(5)),
    case(aten.exp.default, whole(4)),
    case(aten.exp.default, floats(4, dtype=DOUBLE)),
    case(aten.tanh.default, floats(50) * 5),
    case(aten.sigmoid.default, whole(4)),
    case(aten.sigmoid.default, floats(50) * 10),
    case(aten.floor.default, x),
    case(aten.floor.default, whole(3)),
    case(aten.ceil.default, x),
    case(aten.trunc.default, x * 3),
    case(aten.round.default, torch.tensor([0.5, 1.5, -2.5, 0.4])),
    case(aten.round.decimals, torch.tensor([0.125, 1.55, -2.51]), decimals=1),
    case(aten.minimum.default, *ties),
    case(aten.maximum.default, *ties),
    case(aten.maximum.default, special, torch.zeros(5), grad=False),
    case(aten.minimum.default, whole(4), whole(4)),
    case(aten.maximum.default, bools(4), bools(4)),
    case(aten.clamp.default, torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]), -1, 1),
    case(aten.clamp.default, whole(5), 0, None),
    case(aten.clamp.default, whole(5), None, 1.5),
    case(aten.clamp.Tensor, x, torch.tensor(-0.5), torch.tensor(0.5)),
    case(aten.clamp_min.default, x, 0.1),
    case(aten.clamp_min.Tensor, x, torch.tensor(0.1)),
    case(aten.clamp_max.default, x, 0.1),
    case(aten.clamp_max.Tensor, x, torch.tensor(0.1)),
    *(
        case(operation, *pair)
        for operation in (
            aten.eq.Tensor,
            aten.ne.Tensor,
            aten.lt.Tensor,
            aten.le.Tensor,
            aten.gt.Tensor,
            aten.ge.Tensor,
        )
        for pair in (ties, (whole(6), floats(6)), (bools(5), bools(5)), (special, torch.zeros(5)))
    ),
    *(
        case(operation, *pair)
        for operation in (
            aten.eq.Scalar,
            aten.ne.Scalar,
            aten.lt.Scalar,
            aten.le.Scalar,
            aten.gt.Scalar,
            aten.ge.Scalar,
        )
        for pair in ((x, 0.0), (whole(5), 0.5), (whole(5), -1), (bools(4), 1))
    ),
    *(
        case(operation, *pair)
        for operation in (aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
        for pair in ((bools(6), bools(6)), (whole(6, low=0, high=2), floats(6)))
    ),
    case(aten.logical_not.default, bools(6)),
    case(aten.logical_not.default, whole(6, low=0, high=2)),
    *(
        case(operation, *pair)
        for operation in (aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor)
        for pair in ((bools(6), bools(6)), (whole(6), whole(6)))
    ),
    *(
        case(operation, whole(6), 3)
        for operation in (aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar)
    ),
    case(aten.bitwise_not.default, bools(4)),
    case(aten.bitwise_not.default, whole(4)),
    case(aten.isnan.default, special),
    case(aten.isnan.default, whole(4)),
    case(aten.isinf.default, special),
    case(aten.isinf.default, whole(4)),
    case(aten.addcmul.default, x, y, floats(4), value=0.5),
    case(aten.addcdiv.default, x, y, positive(4), value=0.5),
    case(aten.lerp.Scalar, x, y, 0.3),
    case(aten.lerp.Tensor, x, y, within(4)),
]
