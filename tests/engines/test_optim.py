"""Which parameters decay, which optimizer a name means, and what its options may be."""

import importlib
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainwright.config import OptimizerNames, TrainingArguments
from trainwright.engines.torch import optim
from trainwright.engines.torch.optim import (
    build_optimizer,
    decay_parameter_names,
    optimizer_class_and_kwargs,
    parameter_groups,
    parse_optim_args,
)
from trainwright.engines.torch.optim_own import Adafactor, MuonWithAdamW
from trainwright.engines.torch.schedules import build_scheduler

OWN = ("auto", "adamw_torch", "adamw_torch_fused", "adafactor", "adafactor_torch", "sgd", "adagrad", "rmsprop", "muon")
INSTALLED = ("schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd")

# Its types are stricter than what it takes.
transformers: Any = importlib.import_module("transformers")


class Net(nn.Module):
    """Embeddings, a norm by class, norms by name, a bare parameter and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 12)
        self.ln = nn.LayerNorm(12)
        self.q_norm = nn.BatchNorm1d(12)
        self.block = nn.ModuleDict({"norm": nn.Linear(12, 12, bias=False), "RMSNorm": nn.Linear(12, 12)})
        self.scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.ln(self.first(self.embed(tokens))).tanh() * self.scale
        hidden = self.block["RMSNorm"](self.block["norm"](self.q_norm(hidden)))
        return self.head(hidden).square().mean()


def args_for(name: str = "adamw_torch", **values: Any) -> TrainingArguments:
    return TrainingArguments("x", optim=name, use_cpu=True, **values)


def train(model: nn.Module, optimizer: Any, steps: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(0, 11, (5,))).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_decay_names_follow_transformers() -> None:

    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    llama = transformers.LlamaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    for model in (Net(), transformers.BertModel(config), transformers.LlamaForCausalLM(llama), nn.LayerNorm(3)):
        real = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        theirs = set(transformers.Trainer.get_decay_parameter_names(None, model)) & real
        assert set(decay_parameter_names(model)) == theirs
    assert set(decay_parameter_names(Net())) == {"embed.weight", "first.weight", "scale", "head.weight"}


def test_parameter_groups() -> None:
    model = Net()
    model.head.requires_grad_(False)
    decayed, plain = parameter_groups(model, args_for(weight_decay=0.1))
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) == 3
    assert len(decayed["params"]) + len(plain["params"]) == sum(p.requires_grad for p in model.parameters())
    everything, nothing = parameter_groups(model, args_for(weight_decay=0.1), [n for n, _ in model.named_parameters()])
    assert nothing["params"] == []
    assert len(everything["params"]) == sum(p.requires_grad for p in model.parameters())
    # The same two where nothing decays: it may later on.
    same, others = parameter_groups(model, args_for())
    assert (same["weight_decay"], others["weight_decay"]) == (0.0, 0.0)
    assert (len(same["params"]), len(others["params"])) == (len(decayed["params"]), len(plain["params"]))
    with pytest.raises(ValueError, match="unfreeze"):
        parameter_groups(model.requires_grad_(False), args_for())


@pytest.mark.parametrize("name", OWN + INSTALLED)
def test_trains_and_its_state_resumes(name: str) -> None:
    args = args_for(name, weight_decay=0.1, learning_rate=1e-2, lr_scheduler_type="constant")
    whole, first, second = Net(), Net(), Net()
    before = [parameter.detach().clone() for parameter in whole.parameters()]
    ready = []
    for model in (whole, first, second):
        optimizer = build_optimizer(model, args)
        getattr(optimizer, "train", lambda: None)()
        ready.append(optimizer)
    expected = train(whole, ready[0], 8)
    assert not all(torch.equal(a, b) for a, b in zip(before, expected, strict=True))

    halves = _two_halves(first, ready[1], second, ready[2])
    for mine, reference in zip(halves, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=0)


def _two_halves(first: nn.Module, one: Any, second: nn.Module, two: Any) -> list[torch.Tensor]:
    """Eight steps, with model and optimizer handed over through their state in the middle."""
    torch.manual_seed(1)
    batches = [torch.randint(0, 11, (5,)) for _ in range(8)]
    for model, optimizer, part in ((first, one, batches[:4]), (second, two, batches[4:])):
        if model is second:
            second.load_state_dict(first.state_dict())
            two.load_state_dict(one.state_dict())
        for batch in part:
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
    return [parameter.detach() for parameter in second.parameters()]


def test_same_optimizer_as_transformers() -> None:

    for name, values in (
        ("adamw_torch", {}),
        ("adamw_torch_fused", {"adam_beta1": 0.8}),
        ("sgd", {"optim_args": "momentum=0.9,nesterov=true"}),
        ("adagrad", {"optim_args": "lr_decay=0.1"}),
        ("rmsprop", {"optim_args": "alpha=0.9, centered=True"}),
        ("schedule_free_adamw", {"warmup_steps": 3}),
        ("schedule_free_sgd", {"optim_args": "r=0.5"}),
    ):
        ours_cls, ours = optimizer_class_and_kwargs(args_for(name, **values), Net())
        theirs_cls, theirs = transformers.Trainer.get_optimizer_cls_and_kwargs(
            transformers.TrainingArguments("x", optim=name, use_cpu=True, **values), Net()
        )
        assert ours_cls is theirs_cls
        signature_defaults = {"weight_lr_power": 2.0, "r": 0.0}  # transformers spells these out
        assert {**signature_defaults, **ours} == {**signature_defaults, **theirs}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"beta1": 0.9}, {"scale_parameter": True}])
def test_adafactor_equals_transformers(dtype: torch.dtype, options: dict[str, Any]) -> None:

    ours, theirs = Net().to(dtype), Net().to(dtype)
    mine = Adafactor(ours.parameters(), lr=1e-2, weight_decay=0.1, **options)
    scale = {"scale_parameter": False, **options}
    other = transformers.optimization.Adafactor(
        theirs.parameters(), lr=1e-2, weight_decay=0.1, relative_step=False, **scale
    )
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    for a, b in zip(train(ours, mine, 5), train(theirs, other, 5), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_auto_takes_the_fastest_and_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    optim._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="trainwright"):
        for _ in range(2):
            assert optimizer_class_and_kwargs(args_for("auto"))[1]["fused"] is True
        monkeypatch.setattr(optim, "fused_adamw_available", lambda device: False)
        assert optimizer_class_and_kwargs(args_for("auto"), Net())[1]["foreach"] is True
        assert "fused" not in optimizer_class_and_kwargs(args_for("adamw_torch_fused"), Net())[1]
    assert [record.getMessage() for record in caplog.records] == [
        'optim="auto" uses AdamW(fused=True) on cpu.',
        'optim="auto" uses AdamW(foreach=True) on cpu.',
        "AdamW has no fused kernel on cpu; the plain one is used.",
    ]


def test_fused_is_asked_of_torch() -> None:
    assert optim.fused_adamw_available("cpu")
    assert not optim.fused_adamw_available("meta")


def test_muon_splits_by_place() -> None:
    model = Net()
    optimizer = build_optimizer(model, args_for("muon", weight_decay=0.1, optim_args="momentum=0.9,ns_steps=4"))
    assert isinstance(optimizer, MuonWithAdamW)
    by_muon = {id(p) for group in optimizer.param_groups if group["use_muon"] for p in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in by_muon}
    assert names == {"first.weight", "block.norm.weight", "block.RMSNorm.weight"}
    counted = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(counted) == sorted(id(p) for p in model.parameters())
    assert optimizer.param_groups[0]["momentum"] == 0.9

    scheduler = build_scheduler("linear", optimizer, warmup_steps=0, total_steps=2)
    train(model, optimizer, 1)
    scheduler.step()
    frozen = train(model, optimizer, 1)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.0] * len(optimizer.param_groups)
    assert all(torch.equal(a, b) for a, b in zip(train(model, optimizer, 1), frozen, strict=True))

    chosen = build_optimizer(Net(), args_for("muon", optim_target_modules=["first"]))
    assert sum(len(group["params"]) for group in chosen.param_groups if group["use_muon"]) == 1
    with pytest.raises(ValueError, match="pass the model"):
        optimizer_class_and_kwargs(args_for("muon"))
    with pytest.raises(ValueError, match="use_muon"):
        MuonWithAdamW([{"params": []}], lr=0.1)


def test_muon_knows_the_output_layer_of_transformers_models() -> None:

    config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = build_optimizer(model, args_for("muon"))
    by_muon = {id(p) for group in optimizer.param_groups if group["use_muon"] for p in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in by_muon}
    assert names == {name for name, p in model.named_parameters() if p.ndim == 2 and ".h." in name}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (None, {}),
        ("", {}),
        ("a=1, b=0.5,c=true,d=None,e=std,f=1e-3", {"a": 1, "b": 0.5, "c": True, "d": None, "e": "std", "f": 1e-3}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_optim_args(text: Any, values: dict[str, Any]) -> None:
    assert parse_optim_args(text) == values


@pytest.mark.parametrize(
    ("name", "options", "fix"),
    [
        ("sgd", "momentun=0.9", "momentum"),
        ("sgd", "momentum", "key=value"),
        ("sgd", "lr=0.1", "learning_rate"),
        ("sgd", "weight_decay=0.1", "weight_decay"),
        ("adamw_torch", "betas=0.9", "adam_beta1"),
        ("adafactor", "relative_step=true", "scale_parameter"),
        ("schedule_free_sgd", "beta=1", "momentum"),
        ("galore_adamw_layerwise", None, "galore_adamw'"),
        ("apollo_adamw_layerwise", None, "apollo_adamw'"),
    ],
)
def test_refused_options(name: str, options: str | None, fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        optimizer_class_and_kwargs(args_for(name, optim_args=options), Net())


def test_fractional_warmup_of_schedule_free() -> None:
    args = args_for("schedule_free_adamw", warmup_steps=0.1)
    assert optimizer_class_and_kwargs(args, total_steps=50)[1]["warmup_steps"] == 5
    with pytest.raises(ValueError, match="whole number"):
        optimizer_class_and_kwargs(args)
    args.max_steps = 30
    assert optimizer_class_and_kwargs(args)[1]["warmup_steps"] == 3


class Fake(torch.optim.SGD):
    """Stands in for the classes of packages that are not installed; remembers what it was built with."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        self.target, self.given = params, kwargs
        super().__init__([torch.zeros(1, requires_grad=True)], lr=kwargs["lr"])


PACKAGES = {
    "bitsandbytes": "bitsandbytes",
    "bitsandbytes.optim": "bitsandbytes",
    "galore_torch": "galore-torch",
    "apollo_torch": "apollo-torch",
    "lomo_optim": "lomo-optim",
    "grokadamw": "grokadamw",
    "torchao.optim": "torchao",
    "optimi": "torch-optimi",
    "torchdistx.optimizers": "torchdistx",
    "torch_xla.amp.syncfree": "torch_xla",
    "torch_npu.optim": "torch_npu",
}
FOREIGN = [member.value for member in OptimizerNames if member.value not in OWN + INSTALLED]
FOREIGN = [name for name in FOREIGN if not name.endswith("layerwise")]


class _AnyClass(SimpleNamespace):
    def __getattr__(self, name: str) -> type[Fake]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Fake


@pytest.fixture
def fake_packages(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    overridden: list[nn.Module] = []
    manager = SimpleNamespace(register_module_override=lambda module, *_: overridden.append(module))
    for module in PACKAGES:
        monkeypatch.setitem(sys.modules, module, _AnyClass())  # type: ignore[arg-type]
    instance = SimpleNamespace(get_instance=lambda: manager)
    monkeypatch.setitem(
        sys.modules,
        "bitsandbytes",
        SimpleNamespace(optim=SimpleNamespace(GlobalOptimManager=instance)),  # type: ignore[arg-type]
    )
    return overridden


@pytest.mark.parametrize("name", FOREIGN)
def test_missing_packages_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in PACKAGES:
        monkeypatch.setitem(sys.modules, module, None)  # importing it now fails, installed or not
    with pytest.raises(ImportError, match="pip install") as caught:
        optimizer_class_and_kwargs(args_for(name, optim_target_modules="all-linear"), Net())
    assert any(pip_name in str(caught.value) for pip_name in PACKAGES.values())


@pytest.mark.parametrize("name", FOREIGN)
def test_other_packages(name: str, fake_packages: list[nn.Module]) -> None:
    model = Net()
    optimizer: Any = build_optimizer(model, args_for(name, optim_target_modules="all-linear"))
    assert isinstance(optimizer, Fake)
    assert optimizer.given["lr"] == 5e-5
    if optimizer.given.get("optim_bits") == 8:
        assert fake_packages == [model.embed]
    if name in ("lomo", "adalomo"):
        assert optimizer.target is model
    if name.startswith(("galore", "apollo")):
        assert optimizer.target[1]["rank"] == 128
        assert len(optimizer.target[1]["params"]) == 4


def test_low_rank_needs_targets(fake_packages: list[nn.Module]) -> None:
    with pytest.raises(ValueError, match="optim_target_modules"):
        build_optimizer(Net(), args_for("galore_adamw"))
    with pytest.raises(ValueError, match="no linear layer"):
        build_optimizer(Net(), args_for("galore_adamw", optim_target_modules=["nowhere"]))


def test_class_given_by_the_user() -> None:
    kwargs: dict[str, Any] = {"lr": 0.5, "params": [{"params": list(Net().parameters()), "lr": 0.25}]}
    for _ in range(2):  # the dict survives, unlike in transformers
        optimizer = build_optimizer(Net(), args_for(), (torch.optim.SGD, kwargs))
        assert optimizer.param_groups[0]["lr"] == 0.25
    assert len(build_optimizer(Net(), args_for(weight_decay=0.1), (torch.optim.SGD, {"lr": 0.5})).param_groups) == 2

    class Factory:
        def __call__(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=lr)

    assert build_optimizer(Net(), args_for(), (Factory, {"lr": 0.1})).param_groups[0]["lr"] == 0.1
