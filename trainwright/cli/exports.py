"""The command that writes a model, or a checkpoint, for somebody else."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from trainwright.cli.app import BAD_USAGE, FAILED, app
from trainwright.config.errors import ConfigError, MissingPackage


class Format(StrEnum):
    """What to write."""

    hf = "hf"
    safetensors = "safetensors"
    compressed_tensors = "compressed-tensors"
    onnx = "onnx"
    two_of_four = "torch-2:4"
    merged = "merged"


_FORMATS = (
    "hf: a checkpoint that transformers' Trainer resumes from. safetensors: plain weights with exact zeros, masks and "
    "recipe. compressed-tensors: few bits, for vLLM and transformers. onnx: checked in onnxruntime. torch-2:4: which "
    "layers torch's 2:4 kernels take. merged: a trained adapter added to its model, as a plain folder of transformers."
)


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(help="A checkpoint-N folder, a saved model, or a run of an experiment.", metavar="DIR"),
    ],
    to: Annotated[Format, typer.Option("--to", help=_FORMATS)],
    output: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="exported/... beside it")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="my_file.py:function that builds the model, where DIR does not say how.")
    ] = None,
    sample: Annotated[
        str | None, typer.Option(help="Inputs for ONNX: a shape such as 2x1x28x28, or my_file.py:function.")
    ] = None,
    scheme: Annotated[
        str | None, typer.Option(help="Quantize a model that was not trained so: W8A8, W4A16, FP8_DYNAMIC.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Let code run that the experiment names.")] = False,
) -> None:
    """Write a model or checkpoint in another format; the original stays."""
    if not source.is_dir():
        typer.echo(f"Error: {source} is no folder.", err=True)
        raise typer.Exit(BAD_USAGE)
    given = {"--output": output, "--model": model, "--sample": sample, "--scheme": scheme}
    idle = {
        Format.hf: ("--model", "--sample", "--scheme"),
        Format.two_of_four: ("--output", "--sample", "--scheme"),
        Format.merged: ("--model", "--sample", "--scheme"),
    }
    if unused := [name for name in idle.get(to, ()) if given[name]]:
        typer.echo(f"Error: {unused[0]} has no meaning with --to {to.value}: leave it out.", err=True)
        raise typer.Exit(BAD_USAGE)
    if to is Format.hf:
        _to_transformers(source, output)
        return
    try:
        if to is Format.two_of_four:
            _about_two_of_four(source, model, trust)
            return
        if to is Format.merged:
            from trainwright.experiment.merging import merge

            typer.echo(f"The model with its adapter is in {merge(source, output, trust=trust)}.")
            return
        from trainwright.experiment.exporting import export as export_source

        done = export_source(source, to.value, output, model=model, sample=sample, scheme=scheme, trust=trust)
    except (ValueError, OSError, ImportError) as error:
        _fail(error)
    typer.echo(f"Exported to {done.model} ({done.size / 1e6:.2f} MB).")
    _tell(done.notes)


def _to_transformers(checkpoint: Path, output: Path | None) -> None:
    from trainwright.checkpoint.directory import newest_good
    from trainwright.checkpoint.interchange.to_transformers import export_checkpoint

    # Of a run the newest checkpoint.
    found = newest_good(checkpoint)
    try:
        done = export_checkpoint(found or checkpoint, output)
    except (ValueError, OSError) as error:
        _fail(error)
    typer.echo(f"Exported step {done.step} into {done.folder}.")
    _tell(done.notes)
    typer.echo(f'Resume with: transformers.Trainer(...).train(resume_from_checkpoint="{done.folder}")')


def _about_two_of_four(source: Path, model: str | None, trust: bool) -> None:
    from trainwright.experiment.exporting import two_of_four

    names = two_of_four(source, model=model, trust=trust)
    if not names:
        raise ValueError(
            "No linear layer is 2:4 sparse with sizes that are multiples of 32 and 64: train with mask_type: '2:4'."
        )
    shown = ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")
    typer.echo(f"{len(names)} layers are 2:4 sparse: {shown}.")
    typer.echo("Nothing was written: torch keeps such weights in memory only, and on CUDA. After loading the model:")
    typer.echo("  from trainwright.recipes.export.semi_structured import to_semi_structured")
    typer.echo("  to_semi_structured(model.half().cuda())")


def _fail(error: Exception) -> NoReturn:
    """Say what went wrong and leave with the code that fits."""
    typer.echo(f"Error: {error}", err=True)
    refused = (FileExistsError, ConfigError, MissingPackage)
    raise typer.Exit(BAD_USAGE if isinstance(error, refused) else FAILED) from None


def _tell(notes: list[str]) -> None:
    for note in notes:
        typer.echo(f"Note: {note}.")
