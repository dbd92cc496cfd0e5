"""Everything of ours that is chosen by name, and where it is defined; nothing is imported until a name is used.

To add one, write its file and its line here.
"""

from __future__ import annotations


def _all(home: str, names: str) -> dict[str, str]:
    """Several names of one thing, which asks by which of them it was called."""
    return dict.fromkeys(names.split(), home)


_OPTIM = "trainwright.engines.torch.optim"
_EXTRA = "trainwright.engines.torch.optim_extra"
_STRATEGIES = "trainwright.engines.torch.strategies"
_SCHEDULES = "trainwright.engines.torch.schedules"
_TASKS = "trainwright.experiment.tasks"
_RECIPES = "trainwright.recipes"
_LOSSES = "trainwright.engines.torch.loss_functions"
_REGULARISERS = "trainwright.engines.torch.regularisers"

#: Kind -> name -> "module:attribute".
SHIPPED: dict[str, dict[str, str]] = {
    "optimizer": {
        "auto": f"{_OPTIM}:adamw_auto",
        "muon": f"{_OPTIM}:muon",
        "adafactor_torch": f"{_OPTIM}:adafactor_torch",
        "adamw_torch": f"{_OPTIM}:adamw",
        "adamw_torch_fused": f"{_OPTIM}:adamw_fused",
        "adamw_torch_xla": f"{_EXTRA}:adamw_xla",
        "adamw_torch_npu_fused": f"{_EXTRA}:adamw_npu",
        "adafactor": "trainwright.engines.torch.optim_own:Adafactor",
        "adamw_anyprecision": f"{_EXTRA}:adamw_anyprecision",
        "sgd": "torch.optim:SGD",
        "lion": f"{_OPTIM}:lion",
        "adagrad": "torch.optim:Adagrad",
        "rmsprop": "torch.optim:RMSprop",
        **_all(f"{_EXTRA}:adamw_torchao", "adamw_torch_4bit adamw_torch_8bit"),
        **_all(f"{_EXTRA}:bitsandbytes", "ademamix adamw_bnb_8bit adamw_8bit ademamix_8bit lion_8bit lion_32bit"),
        **_all(f"{_EXTRA}:bitsandbytes", "paged_adamw_32bit paged_adamw_8bit paged_ademamix_32bit"),
        **_all(f"{_EXTRA}:bitsandbytes", "paged_ademamix_8bit paged_lion_32bit paged_lion_8bit"),
        **_all(f"{_EXTRA}:bitsandbytes", "rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit"),
        **_all(f"{_EXTRA}:galore", "galore_adamw galore_adamw_8bit galore_adafactor"),
        **_all(f"{_EXTRA}:layerwise", "galore_adamw_layerwise galore_adamw_8bit_layerwise"),
        **_all(f"{_EXTRA}:layerwise", "galore_adafactor_layerwise apollo_adamw_layerwise"),
        **_all(f"{_EXTRA}:lomo", "lomo adalomo"),
        "grokadamw": f"{_EXTRA}:grokadamw",
        **_all(f"{_EXTRA}:schedule_free", "schedule_free_radam schedule_free_adamw schedule_free_sgd"),
        "apollo_adamw": f"{_EXTRA}:apollo",
        "stable_adamw": f"{_EXTRA}:stable_adamw",
    },
    "scheduler": {
        "linear": f"{_SCHEDULES}:linear",
        "cosine": f"{_SCHEDULES}:cosine",
        "cosine_with_restarts": f"{_SCHEDULES}:cosine_with_restarts",
        "polynomial": f"{_SCHEDULES}:polynomial",
        "constant": f"{_SCHEDULES}:constant",
        "constant_with_warmup": f"{_SCHEDULES}:constant_with_warmup",
        "inverse_sqrt": f"{_SCHEDULES}:inverse_sqrt",
        "reduce_lr_on_plateau": f"{_SCHEDULES}:PlateauLR",
        "cosine_with_min_lr": f"{_SCHEDULES}:cosine_with_min_lr",
        "cosine_warmup_with_min_lr": f"{_SCHEDULES}:cosine_warmup_with_min_lr",
        "warmup_stable_decay": f"{_SCHEDULES}:warmup_stable_decay",
        "greedy": "trainwright.engines.torch.greedy:GreedyLR",
    },
    "strategy": {
        "sp": f"{_STRATEGIES}.base:Strategy",
        "ddp": f"{_STRATEGIES}.ddp:OverlappedDDP",
        "fsdp": f"{_STRATEGIES}.fsdp:ShardedFSDP",
        "deepspeed": f"{_STRATEGIES}.deepspeed:ZeroStrategy",
    },
    "tracker": {
        "tensorboard": "trainwright.trackers.tensorboard:TensorBoardTracker",
        "wandb": "trainwright.trackers.wandb:WandbTracker",
        **_all("trainwright.trackers.comet:CometTracker", "comet_ml comet"),
        "aim": "trainwright.trackers.aim:AimTracker",
        "mlflow": "trainwright.trackers.mlflow:MlflowTracker",
        "clearml": "trainwright.trackers.clearml:ClearmlTracker",
        "dvclive": "trainwright.trackers.dvclive:DvcliveTracker",
        "trackio": "trainwright.trackers.trackio:TrackioTracker",
        "jsonl": "trainwright.trackers.jsonl:JsonlTracker",
    },
    "task": {
        "text-classification": f"{_TASKS}.text_classification:TextClassification",
        "causal-lm": f"{_TASKS}.causal_lm:CausalLM",
        "chat": f"{_TASKS}.chat:ChatTask",
        "seq2seq": f"{_TASKS}.seq2seq:Seq2Seq",
        "image-classification": f"{_TASKS}.image_classification:ImageClassification",
        "image-text-classification": f"{_TASKS}.image_text:ImageTextClassification",
        "speech-recognition": f"{_TASKS}.speech:SpeechRecognition",
        "tabular": f"{_TASKS}.tabular:Tabular",
        "tabular-classification": f"{_TASKS}.tabular:TabularClassification",
        "tabular-regression": f"{_TASKS}.tabular:TabularRegression",
        "own": f"{_TASKS}.own:Own",
    },
    "model": {
        "mlp": "trainwright.experiment.networks:Perceptron",
        "cnn": "trainwright.experiment.networks:ConvolutionalNet",
        "char-lm": "trainwright.experiment.networks:CharacterNet",
    },
    "dataset": {
        "digits": f"{_TASKS}.image_classification:digit_rows",
        "characters": f"{_TASKS}.causal_lm:character_lines",
    },
    "loss": {
        "mse": "trainwright.engines.torch.losses:mean_squared_error",
        "l1": "trainwright.engines.torch.losses:mean_absolute_error",
        "huber": "trainwright.engines.torch.losses:huber",
        "cross_entropy": f"{_LOSSES}.classification:CrossEntropyLoss",
        "focal": f"{_LOSSES}.classification:FocalLoss",
        "bce": f"{_LOSSES}.several_classes:BinaryCrossEntropyLoss",
        "dice": f"{_LOSSES}.overlap:DiceLoss",
        "dice_ce": f"{_LOSSES}.overlap:DiceCrossEntropyLoss",
        "ordinal": f"{_LOSSES}.ordinal:OrdinalLoss",
        "contrastive": f"{_LOSSES}.embeddings:ContrastiveLoss",
        "info_nce": f"{_LOSSES}.embeddings:InfoNCELoss",
        "sup_con": f"{_LOSSES}.embeddings:SupConLoss",
        "triplet": f"{_LOSSES}.triplets:TripletLoss",
    },
    "callback": {
        "early_stopping": "trainwright.callbacks.early_stopping:EarlyStoppingCallback",
        "ema": "trainwright.engines.torch.ema:EMACallback",
        "monitor": "trainwright.callbacks.monitor:Monitor",
        "mixup": f"{_REGULARISERS}.mixing:Mixup",
        "cutmix": f"{_REGULARISERS}.mixing:CutMix",
        "gradient_noise": f"{_REGULARISERS}.noise:GradientNoise",
        "r_drop": f"{_REGULARISERS}.two_passes:RDrop",
        "fgm": f"{_REGULARISERS}.perturbing:FGM",
        "sam": f"{_REGULARISERS}.perturbing:SAM",
        "sample_predictions": "trainwright.training.sample_predictions:SamplePredictions",
    },
    "modifier": {
        name: f"{_RECIPES}.{module}:{name}"
        for module, names in {
            "scheduling.epochs": "EpochRangeModifier",
            "scheduling.learning_rate": "SetLearningRateModifier LearningRateModifier LearningRateFunctionModifier",
            "scheduling.weight_decay": "SetWeightDecayModifier",
            "scheduling.parameters": "TrainableParamsModifier SetParamModifier GradualParamModifier",
            "scheduling.reporting": "SparsificationLoggingModifier",
            "pruning.magnitude": "GMPruningModifier MagnitudePruningModifier GlobalMagnitudePruningModifier",
            "pruning.constant": "ConstantPruningModifier",
            "pruning.movement": "MovementPruningModifier",
            "pruning.obs": "OBSPruningModifier",
            "pruning.mfac": "MFACPruningModifier",
            "pruning.acdc": "ACDCPruningModifier",
            "pruning.rigl": "RigLPruningModifier",
            "pruning.topkast": "TopKASTPruningModifier",
            "pruning.powerpropagation": "PowerpropagationModifier",
            "pruning.structured": "StructuredPruningModifier",
            "pruning.thinning": "LayerThinningModifier",
            "pruning.layers": "LayerPruningModifier",
            "quantization.modifier": "QuantizationModifier",
            "distillation.output": "DistillationModifier",
            "distillation.per_output": "OutputDistillationModifier",
            "distillation.per_layer": "PerLayerDistillationModifier",
        }.items()
        for name in names.split()
    },
}
