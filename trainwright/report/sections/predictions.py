"""What the model makes of samples: confusion, the worst of them, residuals, images, and texts over the steps.

From ``evaluation.json`` and ``samples.jsonl``, which anybody may have changed: what has another form is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwright.plots.charts import histogram, matrix, scatter
from trainwright.report.blocks import Beside, Block, Folded, Gallery, Picture, Section, Table, Text
from trainwright.report.lines import Entry, number
from trainwright.report.stored_run import StoredRun
from trainwright.report.words import shortened, value_of

_MOST_CLASSES, _MOST_SAMPLES, _MOST_POINTS, _MOST_KEPT = 100, 32, 2000, 12
#: Of a picture in base64; larger ones would make a large report.
_LARGEST_IMAGE = 60_000


def evaluation_section(run: StoredRun, *, with_samples: bool = True) -> Section:
    """Each evaluated set's predictions in the newest evaluation, and those samples where they say most."""
    section = Section("Predictions")
    sets = [(prefix, one) for prefix, one in run.evaluation.items() if isinstance(one, dict)][:8]
    for prefix, found in sets:
        if not with_samples:
            found = {name: value for name, value in found.items() if name not in ("worst", "examples")}
        if len(sets) > 1:
            section.blocks.append(Text(f"Set {shortened(prefix, 80)}:"))
        kind = found.get("kind")
        if kind == "classification":
            section.blocks += _classification(found)
        elif kind == "regression":
            section.blocks += _regression(found)
    return section


def _classification(found: dict[str, Any]) -> list[Block]:
    names, counts = found.get("names"), _counts(found.get("confusion"))
    blocks: list[Block] = []
    if counts and isinstance(names, list) and len(names) == len(counts):
        words = [str(name) for name in names]
        right = sum(row[place] for place, row in enumerate(counts))
        total = sum(map(sum, counts))
        blocks.append(Text(f"{right:,} of {total:,} predictions are right{_at(found)}."))
        alt = f"Confusion matrix of {len(words)} classes, {right} of {total} on its diagonal"
        blocks.append(Picture(alt, [("", matrix(words, counts))]))
        blocks.append(
            Table(("class", "samples", "found (recall)", "right when said (precision)"), _classes(words, counts))
        )
        if rows := _mistakes(words, counts):
            blocks += [Text("Taken for another most often:"), Table(("true", "predicted", "times"), rows)]
    blocks += _samples(found.get("worst"), "With the greatest loss:")
    blocks += _samples(found.get("examples"), "Samples with their predictions:")
    return blocks


def _counts(value: object) -> list[list[int]]:
    """A square table of counts; empty for anything else."""
    if not isinstance(value, list) or not 2 <= len(value) <= _MOST_CLASSES:
        return []
    rows = [row for row in value if isinstance(row, list) and len(row) == len(value)]
    is_whole = len(rows) == len(value) and all(type(one) is int and 0 <= one < 2**53 for row in rows for one in row)
    return rows if is_whole else []


def _classes(names: list[str], counts: list[list[int]]) -> list[tuple[str, ...]]:
    """How many there are of each class, and how often it is found, and right."""
    rows: list[tuple[str, ...]] = []
    for place, name in enumerate(names[:40]):
        there, said, both = sum(counts[place]), sum(row[place] for row in counts), counts[place][place]
        shares = [f"{both / total:.1%}" if total else "" for total in (there, said)]
        rows.append((shortened(name, 80), f"{there:,}", *shares))
    return rows


def _mistakes(names: list[str], counts: list[list[int]]) -> list[tuple[str, str, str]]:
    pairs = [
        (times, true, guessed)
        for true, row in enumerate(counts)
        for guessed, times in enumerate(row)
        if times and true != guessed
    ]
    return [
        (shortened(names[true], 80), shortened(names[guessed], 80), f"{times:,}")
        for times, true, guessed in sorted(pairs, reverse=True)[:8]
    ]


def _regression(found: dict[str, Any]) -> list[Block]:
    pairs = list(zip(_numbers(found.get("targets")), _numbers(found.get("predictions")), strict=False))
    pairs = [(true, guessed) for true, guessed in pairs if true is not None and guessed is not None]
    blocks: list[Block] = []
    if len(pairs) > 1:
        true, guessed = [one for one, _ in pairs], [one for _, one in pairs]
        blocks.append(Text(f"Predictions and what they leave over (predicted minus true){_at(found)}."))
        alt = f"{len(pairs)} predictions against their true values"
        points = scatter(true, guessed, x_label="true", y_label="predicted", diagonal=True)
        often = histogram([b - a for a, b in pairs], x_label="residual")
        blocks.append(Beside([Picture(alt, [("", points)]), Picture("How often which residuals occur", [("", often)])]))
    blocks += _samples(found.get("worst"), "Furthest from the truth:")
    return blocks


def _numbers(value: object) -> list[float | None]:
    return [number(one) for one in value[:_MOST_POINTS]] if isinstance(value, list) else []


def _at(found: dict[str, Any]) -> str:
    step, shown, total = found.get("step"), found.get("shown"), found.get("samples")
    some = f", of {shown:,} samples out of {total:,}" if type(shown) is int and type(total) is int else ""
    where = f" at step {step:,}" if type(step) is int else ""
    return where + (some if shown != total else "")


def _samples(value: object, title: str) -> list[Block]:
    """Samples as a gallery where they are pictures, else as a table."""
    samples = [one for one in value if isinstance(one, dict)][:_MOST_SAMPLES] if isinstance(value, list) else []
    if not samples:
        return []
    pictured = [one for one in samples if isinstance(one.get("image"), str) and len(one["image"]) < _LARGEST_IMAGE]
    if pictured:
        return [Text(title), Gallery([(one["image"], _caption(one)) for one in pictured])]
    rows = [
        (
            value_of(one.get("index")),
            value_of(one["input"]) if one.get("input") is not None else "",
            value_of(one.get("label")),
            value_of(one.get("prediction")),
            _share(one.get("probability")),
            "" if one.get("loss") is None else value_of(one["loss"]),
        )
        for one in samples
    ]
    return _without_empty_columns(title, ("sample", "input", "true", "predicted", "probability", "loss"), rows)


def _without_empty_columns(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[Block]:
    kept = [place for place in range(len(head)) if any(row[place] for row in rows)]
    return [Text(title), Table([head[place] for place in kept], [[row[place] for place in kept] for row in rows])]


def _share(value: object) -> str:
    found = number(value)
    return "" if found is None else f"{found:.1%}" if 0 <= found <= 1 else value_of(found)


def _guess(sample: Entry) -> str:
    share = _share(sample.get("probability"))
    return f"{value_of(sample.get('prediction'))}{f' ({share})' if share else ''}"


def _caption(sample: Entry) -> str:
    guessed = _guess(sample)
    true = sample.get("label")
    if true is None:
        return guessed
    if value_of(true) == value_of(sample.get("prediction")):
        return f"{guessed}, right"
    return f"{guessed}, is {value_of(true)}"


def samples_section(run: StoredRun) -> Section:
    """The same samples at different steps, as ``SamplePredictions`` wrote them."""
    section = Section("Samples over the steps")
    samples = _by_sample(run.samples)
    pictures = [lines for lines in samples if lines[0].get("kind") == "image"]
    if pictures:
        section.blocks.append(Gallery([_pictured(lines) for lines in pictures]))
    texts = [lines for lines in samples if lines[0].get("kind") != "image"]
    for lines in texts:
        label = lines[-1].get("label")
        title = shortened(str(lines[0].get("input")), 300) + ("" if label is None else f"  (true: {value_of(label)})")
        table = _table_of(lines)
        section.blocks += [Folded(title, [table])] if len(texts) > 3 else [Text(title), table]
    return section


def _by_sample(lines: Sequence[Entry]) -> list[list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for line in lines:
        # Two samples may begin alike; files of before have no numbers.
        key = str(line["sample"] if "sample" in line else line.get("input"))
        if len(found) < _MOST_KEPT or key in found:
            found.setdefault(key, []).append(line)
    return list(found.values())


def _pictured(lines: list[Entry]) -> tuple[str, str]:
    image, label = lines[0].get("input"), lines[-1].get("label")
    words = [
        f"step {value_of(line.get('step'))}: {_guess(line)}" for line in (lines if len(lines) <= 5 else lines[-4:])
    ]
    if len(lines) > 5:
        words = [f"step {value_of(lines[0].get('step'))}: {_guess(lines[0])}", "…", *words]
    title = [] if label is None else [f"is {value_of(label)}"]
    return image if isinstance(image, str) and len(image) < _LARGEST_IMAGE else "", "\n".join([*title, *words])


def _table_of(lines: list[Entry]) -> Table:
    rows = [
        (value_of(line.get("step")), value_of(line.get("prediction")), _share(line.get("probability")))
        for line in lines
    ]
    if len(rows) > 12:
        rows = [*rows[:4], (f"… {len(rows) - 12} more", "", ""), *rows[-8:]]
    head = ("step", "prediction", "probability")
    has_shares = any(row[2] for row in rows)
    return Table(head, rows) if has_shares else Table(head[:2], [row[:2] for row in rows])
