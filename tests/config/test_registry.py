"""One registry: what is chosen by name is ours, registered, or offered by an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trainwright
from tests.forging_packages import installed
from tests.models import Bare, Plain, classification_rows
from trainwright import OptimizerNames, SchedulerType, Trainer, TrainingArguments, register, registered
from trainwright.config import registry
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.config.shipped import SHIPPED
from trainwright.config.warnings import TrainwrightWarning
from trainwright.engines.torch.ema import EMACallback
from trainwright.engines.torch.optim import optimizer_class_and_kwargs
from trainwright.experiment.running import train
from trainwright.recipes.language.reading import read_recipe

MakeArgs = Callable[..., TrainingArguments]


@pytest.fixture(autouse=True)
def _registered_by_this_test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {kind: {} for kind in registry.KINDS})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in SHIPPED for name in SHIPPED[kind]])
def test_everything_shipped_is_where_the_table_says(kind: str, name: str) -> None:
    assert registry.find(kind, name, "here") is not None


def test_every_kind_has_a_table_and_a_group() -> None:
    assert list(SHIPPED) == list(registry.KINDS)
    assert len(set(registry.KINDS.values())) == len(registry.KINDS)
    assert {name.value for name in OptimizerNames} <= set(SHIPPED["optimizer"])
    assert {name.value for name in SchedulerType} <= set(SHIPPED["scheduler"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(registry.KINDS))
def test_a_name_with_a_slip_is_answered_with_the_right_one(kind: str) -> None:
    for name in registered(kind):
        slip = f"{name}x"
        with pytest.raises(
            ConfigError, match=f"^here: there is no {kind} '{slip}' .did you mean '.*choose one of"
        ) as told:
            registry.find(kind, slip, "here")
        assert name in str(told.value)


def test_unknown_kinds_and_taken_names() -> None:
    with pytest.raises(ConfigError, match=r"no kind 'optimiser' .did you mean 'optimizer'.*kinds are optimizer, sched"):
        register("optimiser", "mine")
    with pytest.raises(ConfigError, match="trainwright has one of that name"):
        register("optimizer", "sgd")
    for kind, name in (("optimizer", ""), ("optimizer", "my opt, x"), ("optimizer", 3), ("model", "\x1b[31mred")):
        with pytest.raises(ConfigError, match="a name is letters and digits"):
            register(kind, name)  # type: ignore[bad-argument-type]
    for kind, name in (("tracker", "all"), ("strategy", "mine-bf16"), ("model", "my_file.py:Net")):
        with pytest.raises(ConfigError, match=r"letters and digits|means something else there"):
            register(kind, name)
    with pytest.raises(ConfigError, match="must be a class or a function, and is 3"):
        register("optimizer", "three")(3)
    register("loss", "mine")(lambda outputs, labels: outputs.sum())
    with pytest.raises(ConfigError, match="has that name already: choose another"):
        register("loss", "mine")(torch.nn.functional.l1_loss)


def test_a_definition_that_is_run_again_replaces_itself() -> None:
    found = []
    for _ in range(2):

        @register("loss", "again")
        def again(outputs: Any, labels: Any) -> Any:
            return outputs.sum()

        found.append(again)
    assert registry.find("loss", "again", "here") is found[1]


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "optimizer": (lambda: TrainingArguments("x", optim="adamw_torc"), "optim: there is no optimizer 'adamw_torc'"),
    "scheduler": (lambda: TrainingArguments("x", lr_scheduler_type="cosin"), "lr_scheduler_type: .*mean 'cosine'"),
    "tracker": (lambda: TrainingArguments("x", report_to="mlfow"), "report_to: .*mean 'mlflow'"),
    "strategy": (lambda: TrainingArguments("x", backend="ffsdp-bf16"), "backend='ffsdp-bf16' .*mean 'fsdp'"),
    "loss": (lambda: Trainer(Plain(), compute_loss_func="hubr"), "compute_loss_func: .*mean 'huber'"),
    "modifier": (lambda: read_recipe({"modifiers": [{"GMPruningModifer": {}}]}), "mean 'GMPruningModifier'"),
}


@pytest.mark.parametrize("kind", list(MISTAKES))
def test_mistakes_in_arguments(kind: str) -> None:
    make, message = MISTAKES[kind]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: mlp, task: tabula-regression}\n", r"try.yaml:1: model.task: .*mean 'tabular-regression'"),
        ("model: {name: mlp, loss: hubr}\n", r"try.yaml:1: model.loss: there is no loss 'hubr' .did you mean 'huber'"),
        ("model: mlp\ndata: digits\ncallbacks: [early_stoping]\n", r"try.yaml:3: callbacks: .*mean 'early_stopping'"),
        ("model: mlp\ndata: digits\ntraining: {optim: sgdd}\n", r"try.yaml:3: optim: .*mean 'sgd'"),
    ],
)
def test_mistakes_in_a_file_name_their_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "try.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        train(load_experiment(tmp_path / "try.yaml"), say=lambda line: None)


def test_a_schedule_that_follows_a_metric_needs_one(make_args: MakeArgs) -> None:
    @register("scheduler", "patient")
    class Patient(torch.optim.lr_scheduler.ReduceLROnPlateau):
        pass

    def run(**more: Any) -> Trainer:
        args = make_args(
            lr_scheduler_type="patient", lr_scheduler_kwargs={"patience": 0, "threshold": 1e9}, max_steps=6,
            learning_rate=1.0, **more,
        )  # fmt: skip
        trainer = Trainer(Plain(), args, train_dataset=classification_rows(16), eval_dataset=classification_rows(4))
        trainer.train()
        return trainer

    with pytest.raises(ValueError, match="'patient' follows a metric: name it in metric_for_best_model, and set eval_"):
        run()
    found = run(eval_strategy="steps", eval_steps=2, metric_for_best_model="loss")
    assert found._get_learning_rate() < 0.5


#: One of each kind; each module notes what was done with it.
MODULES = {
    "speckle_optimizer": """
        import torch

        class Plodding(torch.optim.Optimizer):
            def __init__(self, params, lr, pace=1.0):
                super().__init__(params, {"lr": lr, "pace": pace})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            self.state[p]["steps"] = self.state[p].get("steps", torch.zeros(())) + 1
                            p.add_(p.grad.sign(), alpha=-group["lr"] * group["pace"] / float(self.state[p]["steps"]))
        """,
    "speckle_scheduler": """
        def staircase(optimizer, warmup_steps, total_steps, height=0.5):
            return lambda step: height ** (4 * step // total_steps)
        """,
    "speckle_strategy": """
        from trainwright.engines.torch.strategies.base import Strategy

        class Counted(Strategy):
            name = "counted"
            passes = 0

            def backward(self, loss):
                Counted.passes += 1
                super().backward(loss)
        """,
    "speckle_tracker": """
        seen = []

        class Lines:
            def start(self, run): seen.append("start")
            def log(self, values, step): seen.append(step)
            def finish(self, status): seen.append(status)
        """,
    "speckle_loss": """
        def margin(outputs, labels):
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs
            return (1 - logits.gather(1, labels[:, None])).clamp(min=0).mean()
        """,
    "speckle_experiment": """
        import torch
        from trainwright import Modifier, TrainerCallback
        from trainwright.experiment.tasks.base import Prepared
        from trainwright.experiment.models import build_local

        acted = []

        def ramp(count=8):
            return [{"x": torch.tensor([float(i)]), "labels": torch.tensor(2.0 * i)} for i in range(count)]

        class Line(torch.nn.Module):
            def __init__(self, inputs=1):
                super().__init__()
                self.layer = torch.nn.Linear(inputs, 1)

            def forward(self, x):
                return self.layer(x)

        class Fitting:
            def defaults(self, loaded):
                return {"learning_rate": 0.01}

            def prepare(self, given):
                acted.append("task")
                return Prepared(build_local(given.loaded, inputs=1), lambda rows: rows, lambda found: [])

        class Saying(TrainerCallback):
            def __init__(self, word="callback"):
                self.word = word

            def on_train_end(self, args, state, control, **kwargs):
                acted.append(self.word)

        class ShrinkModifier(Modifier):
            def __init__(self, *, start_epoch=-1.0, end_epoch=-1.0):
                super().__init__(start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=0.5)

            def update(self, site, epoch):
                acted.append("modifier")
        """,
}
POINTS = {
    "trainwright.optimizers": {"speckle-plodding": "speckle_optimizer:Plodding"},
    "trainwright.schedulers": {"speckle-staircase": "speckle_scheduler:staircase"},
    "trainwright.strategies": {"speckle-counted": "speckle_strategy:Counted"},
    "trainwright.trackers": {"speckle-lines": "speckle_tracker:Lines"},
    "trainwright.losses": {"speckle-margin": "speckle_loss:margin"},
    "trainwright.tasks": {"speckle-fitting": "speckle_experiment:Fitting"},
    "trainwright.models": {"speckle-line": "speckle_experiment:Line"},
    "trainwright.datasets": {"speckle-ramp": "speckle_experiment:ramp"},
    "trainwright.callbacks": {"speckle-saying": "speckle_experiment:Saying"},
    "trainwright.modifiers": {"SpeckleShrink": "speckle_experiment:ShrinkModifier"},
}


@pytest.fixture
def speckle(tmp_path: Path) -> Iterator[None]:
    with installed(tmp_path / "site", "speckle", MODULES, POINTS):
        yield


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("speckle_")}


@pytest.mark.slow
@pytest.mark.usefixtures("speckle")
def test_listing_and_guessing_import_nothing() -> None:
    for kind in registry.KINDS:
        assert any(name.lower().startswith("speckle") for name in registered(kind))
    with pytest.raises(ValueError, match="did you mean 'speckle-plodding'"):
        TrainingArguments("x", optim="speckle-ploding")
    TrainingArguments("x", optim="speckle-plodding", lr_scheduler_type="speckle-staircase", report_to="speckle-lines")
    assert imported() == set()


@pytest.mark.usefixtures("speckle")
def test_names_on_the_command_line_of_a_script() -> None:
    from transformers import HfArgumentParser

    words = ["--output_dir", "x", "--optim", "speckle-plodding", "--lr_scheduler_type", "speckle-staircase"]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*words, "--backend", "speckle-counted"])  # type: ignore[arg-type]
    assert (args.optim, args.lr_scheduler_type, args.backend) == (
        "speckle-plodding", "speckle-staircase", "speckle-counted",
    )  # fmt: skip
    with pytest.raises(ValueError, match="did you mean 'sgd'"):
        HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--optim", "sdg"])  # type: ignore[arg-type]


@pytest.mark.usefixtures("speckle")
def test_only_what_is_named_is_imported_and_used(make_args: MakeArgs) -> None:
    args = make_args(optim="speckle-plodding", optim_args="pace=2", max_steps=2)
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(16))
    trainer.train()
    assert type(trainer.optimizer).__name__ == "Plodding"
    assert trainer.optimizer.defaults["pace"] == 2
    assert imported() == {"speckle_optimizer"}


@pytest.mark.slow
@pytest.mark.usefixtures("speckle")
def test_a_training_of_which_everything_is_from_elsewhere(make_args: MakeArgs) -> None:
    settings: dict[str, Any] = {
        "optim": "speckle-plodding", "lr_scheduler_type": "speckle-staircase", "lr_scheduler_kwargs": {"height": 0.1},
        "report_to": "speckle-lines", "backend": "speckle-counted", "learning_rate": 0.01, "max_steps": 4,
        "logging_steps": 1, "save_strategy": "steps", "save_steps": 2,
    }  # fmt: skip

    def run(**more: Any) -> Trainer:
        args = make_args(**settings, **more)
        return Trainer(Bare(), args, train_dataset=classification_rows(16), compute_loss_func="speckle-margin")

    whole = run()
    whole.train()
    import speckle_strategy  # type: ignore[import-not-found]
    import speckle_tracker  # type: ignore[import-not-found]

    assert speckle_strategy.Counted.passes == 4
    assert speckle_tracker.seen == ["start", 1, 2, 3, 4, 4, "done"]
    rates = [entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([0.01, 0.001, 1e-4, 1e-5])
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    resumed = run()
    resumed.train(resume_from_checkpoint=str(Path(str(whole.args.output_dir)) / "checkpoint-2"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


@pytest.mark.slow
@pytest.mark.usefixtures("speckle")
def test_an_experiment_of_which_everything_is_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.yaml").write_text(
        "model: {name: speckle-line, task: speckle-fitting, loss: l1}\n"
        "data: {train: speckle-ramp, options: {count: 12}}\n"
        "callbacks: {speckle-saying: {word: bye}}\n"
        "recipe: {modifiers: [{SpeckleShrink: {end_epoch: 1.0}}]}\n"
        "training: {optim: speckle-plodding, num_train_epochs: 1, use_cpu: true}\n"
    )
    done = train(load_experiment(tmp_path / "try.yaml"), say=lambda line: None)
    import speckle_experiment  # type: ignore[import-not-found]

    assert done.steps == 2
    assert {"task", "bye", "modifier"} == set(speckle_experiment.acted)
    assert "optim: speckle-plodding" in (Path(done.folder) / "experiment.yaml").read_text()


def test_a_package_that_does_not_load_is_named(tmp_path: Path, make_args: MakeArgs) -> None:
    points = {"trainwright.optimizers": {"cracked-adam": "cracked:Adam", "gone-adam": "cracked_too:Adam"}}
    with installed(tmp_path, "cracked-tools", {"cracked": "import no_such_module_at_all"}, points):
        args = make_args(optim="cracked-adam", max_steps=1)
        with pytest.raises(
            ConfigError, match=r"optim: 'cracked-adam' is offered by the package cracked-tools 1\.0 as "
        ) as told:
            Trainer(Plain(), args, train_dataset=classification_rows(4)).train()
        assert "No module named 'no_such_module_at_all'" in str(told.value)


def test_ours_stays_when_a_package_takes_its_name(tmp_path: Path, make_args: MakeArgs) -> None:
    modules = {"shadow": "raise AssertionError('nobody asked for this')"}
    with installed(tmp_path, "shadow-tools", modules, {"trainwright.optimizers": {"sgd": "shadow:SGD"}}):
        trainer = Trainer(Plain(), make_args(optim="sgd", max_steps=1), train_dataset=classification_rows(4))
        trainer.train()
        assert type(trainer.optimizer) is torch.optim.SGD
        registry._say_that_ours_stays.cache_clear()
        with pytest.warns(TrainwrightWarning, match="'sgd' of the package shadow-tools 1.0 is never used.* ours stays"):
            assert registered("optimizer").count("sgd") == 1
        # Once a process is enough.
        registered("optimizer")


def test_two_packages_with_one_name_are_told_apart_by_the_user(tmp_path: Path) -> None:
    first = installed(tmp_path / "a", "one-tools", {"one": "x = 1"}, {"trainwright.losses": {"twin": "one:x"}})
    second = installed(tmp_path / "b", "two-tools", {"two": "x = 2"}, {"trainwright.losses": {"twin": "two:x"}})
    with (
        first,
        second,
        pytest.raises(ConfigError, match=r"'twin' is offered by the package .*-tools 1\.0 and the pack"),
    ):
        registry.find("loss", "twin", "here")


@pytest.mark.usefixtures("speckle")
def test_what_a_program_registers_comes_before_what_a_package_offers() -> None:
    register("loss", "speckle-margin")(torch.nn.functional.l1_loss)
    assert registry.find("loss", "speckle-margin", "here") is torch.nn.functional.l1_loss
    assert imported() == set()


def test_ours_are_found_without_reading_entry_points() -> None:
    code = (
        "import sys\n"
        "from trainwright import TrainingArguments\n"
        "from trainwright.config import entry_points\n"
        "TrainingArguments('x', optim='sgd', lr_scheduler_type='cosine', report_to='jsonl', backend='sp')\n"
        "print(entry_points.offered.cache_info().misses, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]


def test_a_function_for_an_optimizer_leaves_the_run_its_learning_rate() -> None:
    register("optimizer", "by-function")(lambda request: (torch.optim.SGD, {"momentum": 0.5}))
    register("optimizer", "half-done")(lambda request: torch.optim.SGD)
    args = TrainingArguments("out", optim="by-function", learning_rate=0.25)
    assert optimizer_class_and_kwargs(args) == (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5})
    with pytest.raises(ValueError, match=r"optim_args has \['zzz'\]"):
        optimizer_class_and_kwargs(TrainingArguments("out", optim="by-function", optim_args="zzz=1"))
    with pytest.raises(ValueError, match="must return a class and a dict of its arguments"):
        optimizer_class_and_kwargs(TrainingArguments("out", optim="half-done"))


def test_callbacks_are_found_by_name(tmp_path: Path) -> None:
    trainer = Trainer(torch.nn.Linear(2, 1), TrainingArguments(str(tmp_path)), callbacks=["ema"])
    assert isinstance(trainer.pop_callback(EMACallback), EMACallback)
    with pytest.raises(ConfigError, match=r"no callback 'early_stoping' .did you mean 'early_stopping'"):
        trainer.add_callback("early_stoping")


def test_what_merely_lies_beside_an_imported_file_offers_nothing(tmp_path: Path) -> None:
    """``--import`` allows one file, not packages that somebody put into its folder."""
    info = tmp_path / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trainwright.optimizers]\nbeside = evil:run\n")
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "mine.py").write_text("pass\n")
    script = (
        "from trainwright.config.registry import import_file, is_registered\n"
        "import_file('mine.py')\nassert not is_registered('optimizer', 'beside')\n"
    )
    home = str(Path(trainwright.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("as_columns", [False, True])
def test_rows_of_ones_own_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_columns: bool) -> None:
    columns = {"size": [float(i) for i in range(12)], "price": [2.0 * i for i in range(12)]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    register("dataset", f"prices-{as_columns}")(lambda: columns if as_columns else rows)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.yaml").write_text(
        "model: {name: mlp, task: tabular-regression}\n"
        f"data: {{train: prices-{as_columns}, target: price, holdout: 0.25}}\n"
        "training: {max_steps: 2, use_cpu: true}\n"
    )
    assert train(load_experiment(tmp_path / "e.yaml"), say=lambda line: None).steps == 2
    again = (tmp_path / "e.yaml").read_text().replace("holdout", "options: {cont: 1}, holdout")
    (tmp_path / "e.yaml").write_text(again)
    with pytest.raises(ConfigError, match=r"data.options: there is no option 'cont'"):
        train(load_experiment(tmp_path / "e.yaml"), fresh=True, say=lambda line: None)


def test_a_file_of_the_users_comes_before_what_a_package_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"trainwright.datasets": {"rows.csv": "shadow_rows:never"}}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("size,price\n" + "".join(f"{i},{2 * i}\n" for i in range(12)))
    (tmp_path / "e.yaml").write_text(
        "model: {name: mlp, task: tabular-regression}\ndata: {train: rows.csv, target: price}\n"
        "training: {max_steps: 1, use_cpu: true}\n"
    )
    with installed(tmp_path, "shadow-tools", {"shadow_rows": "raise RuntimeError('it ran')"}, points):
        assert train(load_experiment(tmp_path / "e.yaml"), say=lambda line: None).steps == 1


def test_a_package_that_wants_to_end_the_program_does_not(tmp_path: Path, make_args: MakeArgs) -> None:
    points = {"trainwright.optimizers": {"leaving-adam": "leaving:Adam", "\x1b[31mred": "leaving:Adam"}}
    with installed(tmp_path, "leaving-tools", {"leaving": "raise SystemExit(0)"}, points):
        assert "leaving-adam" in registered("optimizer")
        assert not any("\x1b" in name for name in registered("optimizer"))
        with pytest.raises(
            ConfigError, match=r"leaving-tools 1\.0 as leaving:Adam, which cannot be loaded: SystemExit"
        ):
            Trainer(Plain(), make_args(optim="leaving-adam"), train_dataset=classification_rows(4)).train()


def test_another_optimizer_of_the_same_name_does_not_take_up_the_state(make_args: MakeArgs) -> None:
    options: dict[str, Any] = {"optim": "mine-again", "save_steps": 1, "save_strategy": "steps"}
    for base, steps in ((torch.optim.AdamW, 1), (torch.optim.SGD, 2)):
        mine = type("Mine", (base,), {"__module__": __name__, "__qualname__": "Mine"})
        register("optimizer", "mine-again")(mine)
        trainer = Trainer(Plain(), make_args(max_steps=steps, **options), train_dataset=classification_rows(8))
        if base is torch.optim.AdamW:
            trainer.train()
            continue
        with pytest.raises(ValueError, match=r"checkpoint's Mine was another optimizer, with .*betas, .*eps"):
            trainer.train(resume_from_checkpoint=True)
