"""Construction, copies, subclasses and command lines."""

import copy
import dataclasses
import importlib.util
import json
import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainwright.config import (
    DebugOption,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SaveStrategy,
    Seq2SeqTrainingArguments,
    TrainingArguments,
    TrainwrightWarning,
    help_for,
    parse_profile,
)
from trainwright.config.derive import BUILT_IN_TRACKERS


@dataclass
class MyArgs(TrainingArguments):
    my_field: int = 3
    api_token: str | None = None


@dataclass
class ArgsWithInit(TrainingArguments):
    learning_rate: float = 1e-3
    names: list[str] = field(default_factory=list)
    half: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.half = self.learning_rate / 2


@dataclass
class ArgsThatTakeOurNames(TrainingArguments):
    engine: str = "vllm"
    profile: bool = False  # type: ignore[assignment]
    micro_batch: float = 0.5  # type: ignore[assignment]


def test_construction_imports_no_framework() -> None:
    code = (
        "import sys; from trainwright.config import TrainingArguments; a = TrainingArguments('x', bf16=True);"
        "str(a), a.to_json_string(), a.to_sanitized_dict(), a.train_batch_size;"
        "bad = {'torch', 'transformers', 'accelerate', 'numpy'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_output_dir_is_positional_and_has_a_default() -> None:
    assert TrainingArguments("out").output_dir == "out"
    assert TrainingArguments().output_dir == "trainer_output"
    assert TrainingArguments(Path("a") / "b").output_dir == str(Path("a/b"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TrainingArguments("out", 8)  # type: ignore[misc]


def test_words_become_enums_that_equal_their_words() -> None:
    args = TrainingArguments("x", eval_strategy="epoch", save_strategy="best", optim="muon", debug="underflow_overflow")
    assert args.eval_strategy is IntervalStrategy.EPOCH
    assert args.save_strategy is SaveStrategy.BEST
    assert args.optim is OptimizerNames.MUON
    assert args.debug == [DebugOption.UNDERFLOW_OVERFLOW]
    assert args.eval_strategy == "epoch"
    assert f"{args.eval_strategy}" == "epoch"
    assert args.do_eval


def test_values_from_yaml_become_their_types() -> None:
    values: dict[str, Any] = {
        "learning_rate": "5e-5",
        "per_device_train_batch_size": "4",
        "max_steps": 1e3,
        "fp16": "true",
        "eval_strategy": False,
        "lr_scheduler_kwargs": '{"min_lr": "1e-6"}',
        "gradient_checkpointing_kwargs": {"use_reentrant": "False"},
        "include_num_input_tokens_seen": True,
        "label_names": "labels",
        "max_grad_norm": None,
    }
    args = TrainingArguments("x", **values)
    assert args.learning_rate == 5e-5
    assert (args.per_device_train_batch_size, args.max_steps, type(args.max_steps)) == (4, 1000, int)
    assert args.fp16 is True
    assert args.eval_strategy == "no"
    assert args.lr_scheduler_kwargs == {"min_lr": 1e-6}
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert args.include_num_input_tokens_seen == "all"
    assert args.label_names == ["labels"]
    assert args.max_grad_norm == 0.0


def test_what_is_left_open_follows_from_the_rest() -> None:
    args = TrainingArguments("x", eval_strategy="steps", logging_steps=7.0, load_best_model_at_end=True, use_cpu=True)
    assert args.eval_steps == 7
    assert isinstance(args.eval_steps, int)
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    assert not args.dataloader_pin_memory
    assert TrainingArguments("x", metric_for_best_model="accuracy").greater_is_better is True
    assert TrainingArguments("x").metric_for_best_model is None
    compiled = TrainingArguments("x", torch_compile_mode="default")
    assert (compiled.torch_compile, compiled.torch_compile_backend) == (True, "inductor")


def test_report_to() -> None:
    assert TrainingArguments("x").report_to == []
    assert TrainingArguments("x", logging_dir="logs").report_to == ["tensorboard"]
    assert TrainingArguments("x", logging_dir="logs", report_to="none").report_to == []
    assert TrainingArguments("x", report_to=None).report_to == []
    assert TrainingArguments("x", report_to=["jsonl", "tensorboard"]).report_to == ["jsonl", "tensorboard"]
    installed = {name for name in BUILT_IN_TRACKERS if importlib.util.find_spec(name)}
    assert set(TrainingArguments("x", report_to="all").report_to or []) == installed
    assert TrainingArguments("x", report_to="wandb").report_to == ["wandb"]
    with pytest.raises(ValueError, match="choose one of"):
        TrainingArguments("x", report_to="nonsense")


def test_secrets_appear_nowhere() -> None:
    args = MyArgs("x", hub_token="s3cret", api_token="s3cret", lr_scheduler_kwargs={"hub": {"token": "s3cret"}})
    texts = [str(args), repr(args), args.to_json_string(), str(args.to_sanitized_dict()), str(args.to_dict())]
    assert not any("s3cret" in text for text in texts)
    assert args.to_dict()["hub_token"] == "<HUB_TOKEN>"
    assert args.hub_token == "s3cret"
    with pytest.warns(FutureWarning):
        old = TrainingArguments("x", push_to_hub_token="s3cret")
    assert old.hub_token == "s3cret"
    assert "s3cret" not in str(old) + repr(old) + old.to_json_string()


def test_dict_round_trip() -> None:
    args = TrainingArguments("x", eval_strategy="steps", hub_token="s3cret", logging_steps=0.1)
    again = TrainingArguments(**json.loads(args.to_json_string()))
    assert again.hub_token is None
    again.hub_token = "s3cret"
    assert again == args


def test_copies_start_from_what_was_said() -> None:
    with pytest.warns(FutureWarning):
        args = TrainingArguments("x", evaluation_strategy="epoch", warmup_ratio=0.1, overwrite_output_dir=True)
    with pytest.warns(TrainwrightWarning):
        noisy = TrainingArguments("x", ddp_broadcast_buffers=False, auto_find_batch_size=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for original in (args, noisy):
            for same in (
                dataclasses.replace(original),
                copy.deepcopy(original),
                copy.copy(original),
                pickle.loads(pickle.dumps(original)),  # noqa: S301 - our own object, never a file
                TrainingArguments(**dataclasses.asdict(original)),
            ):
                assert same == original
                assert same.overwrite_output_dir == original.overwrite_output_dir
                assert same.warmup_ratio == original.warmup_ratio
        args.eval_strategy = IntervalStrategy.NO
        other = dataclasses.replace(args, eval_strategy="steps", logging_steps=9)
        assert (other.eval_steps, other.evaluation_strategy, other.warmup_steps) == (9, "steps", 0.1)
        best = dataclasses.replace(other, load_best_model_at_end=True)
        assert dataclasses.replace(best, metric_for_best_model="f1").greater_is_better is True
        twice = dataclasses.replace(dataclasses.replace(best), logging_steps=11)
        assert twice.eval_steps == 11
    with pytest.warns(FutureWarning, match="eval_strategy"):
        assert dataclasses.replace(args, evaluation_strategy="epoch").eval_strategy == "epoch"


def test_subclasses() -> None:
    args = MyArgs("x", my_field=5, learning_rate=1e-4)
    assert (args.my_field, args.to_dict()["my_field"]) == (5, 5)
    assert dataclasses.replace(args, my_field=6).my_field == 6
    other = ArgsWithInit("x", names=["a"])
    assert (other.learning_rate, other.half) == (1e-3, 5e-4)
    assert dataclasses.replace(other, learning_rate=1e-4).half == 5e-5
    mine = ArgsThatTakeOurNames("x", micro_batch=0.25)
    assert (mine.engine, mine.profile, mine.micro_batch) == ("vllm", False, 0.25)


@pytest.mark.parametrize("cls", [TrainingArguments, MyArgs, Seq2SeqTrainingArguments])
def test_command_lines(cls: type[TrainingArguments]) -> None:
    import transformers

    parser = transformers.HfArgumentParser(cls)
    line = "--output_dir out --bf16 --optim auto --eval_strategy steps --eval_steps 0.5 --micro_batch 4 --debug "
    line += "underflow_overflow --include_for_metrics inputs loss --no_remove_unused_columns --report_to tensorboard"
    (args,) = parser.parse_args_into_dataclasses(line.split())
    assert type(args) is cls
    assert (args.output_dir, args.bf16, args.optim, args.eval_steps, args.micro_batch) == ("out", True, "auto", 0.5, 4)
    assert args.include_for_metrics == ["inputs", "loss"]
    assert not args.remove_unused_columns
    (plain,) = parser.parse_args_into_dataclasses(["--output_dir", "out"])
    assert plain == cls("out")
    (logged,) = parser.parse_args_into_dataclasses(["--output_dir", "out", "--logging_dir", "logs"])
    assert logged.report_to == ["tensorboard"]
    (from_dict,) = parser.parse_dict({"output_dir": "out", "learning_rate": "1e-3"})
    assert from_dict.learning_rate == 1e-3
    assert "Seed of every random number" in parser.format_help()
    assert "_resolution" not in parser.format_help().partition("options:")[2]


def test_old_command_line() -> None:
    import transformers

    parser = transformers.HfArgumentParser(TrainingArguments)
    line = "--output_dir out --evaluation_strategy epoch --overwrite_output_dir --warmup_ratio 0.1 --no_cuda"
    with pytest.warns(FutureWarning) as caught:
        (args,) = parser.parse_args_into_dataclasses(line.split())
    assert len(caught) == 1
    assert (args.eval_strategy, args.overwrite_output_dir, args.warmup_steps, args.use_cpu) == (
        "epoch",
        True,
        0.1,
        True,
    )


def test_every_field_has_help() -> None:
    for spec in dataclasses.fields(Seq2SeqTrainingArguments):
        if spec.name != "_resolution":
            assert help_for(spec.name).endswith("."), spec.name
            assert spec.metadata["help"] == help_for(spec.name).replace("%", "%%")


def test_process_properties() -> None:
    args = TrainingArguments("x", use_cpu=True, per_device_train_batch_size=3, per_device_eval_batch_size=5, bf16=True)
    assert (args.train_batch_size, args.eval_batch_size) == (3, 5)
    assert (str(args.device), args.n_gpu, args.world_size, args.process_index) == ("cpu", 0, 1, 0)
    assert (args.local_process_index, args.should_log, args.should_save) == (0, True, True)
    assert args.parallel_mode is ParallelMode.NOT_PARALLEL
    assert args.ddp_timeout_delta.total_seconds() == 1800
    assert args.place_model_on_device is None
    assert args.mixed_precision == "bf16"
    with args.main_process_first(desc="nothing"):
        pass


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (0.1, 11), (1, 1), (25.0, 25)])
def test_warmup_steps(warmup: float, steps: int) -> None:
    assert TrainingArguments("x", warmup_steps=warmup).get_warmup_steps(101) == steps


def test_log_level() -> None:
    assert TrainingArguments("x", log_level="error").get_process_log_level() == 40
    assert TrainingArguments("x").get_process_log_level() == 30


def test_setters() -> None:
    args = (
        TrainingArguments("x")
        .set_training(learning_rate=1e-3, batch_size=2, num_epochs=4)
        .set_evaluate(strategy="steps", steps=5, batch_size=6)
        .set_save(strategy="epoch", total_limit=2)
        .set_logging(steps=3, report_to=["tensorboard"])
        .set_push_to_hub("me/it", token="s3cret")
        .set_optimizer("sgd", learning_rate=0.1)
        .set_lr_scheduler("cosine", warmup_steps=0.1)
        .set_dataloader(train_batch_size=16, num_workers=1)
        .set_testing(batch_size=9)
    )
    assert (args.do_train, args.do_eval, args.do_predict, args.push_to_hub) == (True, True, True, True)
    assert (args.optim, args.learning_rate, args.lr_scheduler_type, args.save_strategy) == (
        "sgd",
        0.1,
        "cosine",
        "epoch",
    )
    assert (args.train_batch_size, args.eval_batch_size, args.eval_delay) == (16, 9, 0)
    assert "s3cret" not in str(args)
    for broken in (args.set_evaluate, args.set_save, args.set_logging):
        with pytest.raises(ValueError, match="positive"):
            broken(strategy="steps", steps=0)


def test_seq2seq() -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return {"max_length": 7}

    args = Seq2SeqTrainingArguments("x", predict_with_generate=True, generation_config=Config())
    assert args.to_dict()["generation_config"] == {"max_length": 7}
    json.loads(args.to_json_string())
    with pytest.warns(TrainwrightWarning, match="sortish_sampler"):
        Seq2SeqTrainingArguments("x", sortish_sampler=True)


@pytest.mark.parametrize(
    ("text", "steps"), [("steps 5-10", (5, 10)), ("5 - 10", (5, 10)), ("Step 7", (7, 7)), ("steps 1-1", (1, 1))]
)
def test_profile(text: str, steps: tuple[int, int]) -> None:
    assert parse_profile(text) == steps
    assert TrainingArguments("x", profile=text).profile == text


@pytest.mark.parametrize("text", ["", "steps", "0-3", "5-4", "all", "-3"])
def test_wrong_profile(text: str) -> None:
    with pytest.raises(ValueError, match="profile="):
        TrainingArguments("x", profile=text)


def test_warnings_point_at_the_caller() -> None:
    with pytest.warns(TrainwrightWarning) as caught:
        MyArgs("x", ddp_broadcast_buffers=True)
    assert caught[0].filename == __file__
