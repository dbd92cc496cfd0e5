import torch

from tests.engines.mindspore.cases.case import Case, aten, case, floats, positive, whole, within

x = floats(4, 5) * 3
edges = torch.tensor([-40.0, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 6.0, 25.0, 100.0])
hidden = torch.tensor([[0.5, -float("inf"), 1.0], [-float("inf")] * 3])
log = torch.log_softmax(floats(6, 5), -1)
labels = torch.tensor([0, 1, 4, -100, 2, 2])
image_log = torch.log_softmax(floats(2, 5, 3, 3), 1)
probability, target = torch.sigmoid(floats(4, 3)), torch.sigmoid(floats(4, 3))
near, far = floats(4, 3), floats(4, 3) * 2

CASES: list[Case] = [
    *(
        case(operation, values)
        for operation in (
            aten.relu.default,
            aten.relu6.default,
            aten.gelu.default,
            aten.silu.default,
            aten.elu.default,
            aten.leaky_relu.default,
            aten.hardtanh.default,
            aten.softplus.default,
            aten.hardsigmoid.default,
            aten.hardswish.default,
            aten.log_sigmoid.default,
            aten.mish.default,
        )
        for values in (x, edges)
    ),
    case(aten.gelu.default, x, approximate="tanh"),
    case(aten.gelu.default, floats(50, dtype=torch.float64)),
    case(aten.elu.default, x, 1.6732632423543772, 1.0507009873554805, 1),
    case(aten.leaky_relu.default, x, 0.2),
    case(aten.hardtanh.default, x, 0, 6),
    case(aten.softplus.default, x, 2, 5),
    case(aten.log_sigmoid_forward.default, edges, outputs=1),
    case(aten._prelu_kernel.default, floats(2, 3, 4), floats(1, 3, 1)),
    case(aten._softmax.default, x, -1, False),
    case(aten._softmax.default, x, 0, False),
    case(aten._softmax.default, x * 30, 1, False),
    case(aten._softmax.default, hidden, -1, False, grad=False),
    case(aten._softmax.default, floats(3, 4, dtype=torch.float64), -1, False),
    case(aten._softmax.default, floats(2, 3, 4, 4), -1, False),
    case(aten._log_softmax.default, x, -1, False),
    case(aten._log_softmax.default, x * 30, 0, False),
    case(aten._log_softmax.default, hidden, -1, False, grad=False),
    case(aten.softmax.int, x, 1),
    case(aten.log_softmax.int, x, 1, torch.float64),
    *(
        case(operation, near, far, reduction)
        for operation in (aten.mse_loss.default, aten.l1_loss.default)
        for reduction in (0, 1, 2)
    ),
    case(aten.smooth_l1_loss.default, near, far, 1, 0.5),
    case(aten.smooth_l1_loss.default, near, far, 0, 0.0),
    case(aten.huber_loss.default, near, far, 2, 0.5),
    case(aten.binary_cross_entropy.default, probability, target),
    case(aten.binary_cross_entropy.default, probability, target, positive(3), 2, still=(2,)),
    case(aten.binary_cross_entropy_with_logits.default, edges, within(10).abs()),
    case(aten.binary_cross_entropy_with_logits.default, near, target, positive(3), positive(3), 0, still=(1, 2, 3)),
    case(aten.nll_loss_forward.default, log, labels, None, 1, -100),
    case(aten.nll_loss_forward.default, log, labels, positive(5), 1, -100, still=(2,)),
    case(aten.nll_loss_forward.default, log, labels.clamp(min=0), positive(5), 2, 2, still=(2,)),
    case(aten.nll_loss_forward.default, log, labels, None, 0, -100),
    case(aten.nll_loss_forward.default, floats(5), torch.tensor(3), None, 1, -100),
    case(aten.nll_loss2d_forward.default, image_log, whole(2, 3, 3, low=0, high=5), positive(5), 1, 2, still=(2,)),
]
