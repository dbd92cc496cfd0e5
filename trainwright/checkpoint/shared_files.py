"""A running training whose weights are in parts, as a checkpoint: what each process writes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainwright.checkpoint.durable import Chunk
from trainwright.checkpoint.pack import TensorPack, file_chunks
from trainwright.checkpoint.pieces import Piece, is_copy, nbytes, owners, piece_of
from trainwright.checkpoint.sharded import index_name, pieces_index, shard_name, weights_index
from trainwright.checkpoint.weights import WEIGHTS, Convert, keep_newer_form
from trainwright.checkpoint.writer_group import WriterGroup
from trainwright.core.dtensors import is_dtensor, whole


class SharedFiles:
    """One process's part of a checkpoint: tensors by kind, copied to main memory and written by everybody at once.

    Args:
        together: The processes that write.
        kinds: Tensors of each file; the model's are written whole, the others in the parts that they are in.
        convert: What is done to the model's tensors before they are written.
        pack: Room in main memory for the tensors of a file.
    """

    def __init__(
        self, together: WriterGroup, kinds: Mapping[str, Mapping[str, Tensor]], convert: Convert | None, pack: Any
    ) -> None:
        self.together, self._convert = together, convert
        self.fill_by_all = WEIGHTS not in kinds
        self._pieces = {kind: self._chosen(kind, tensors) for kind, tensors in kinds.items()}
        self._copies = {name for name, tensor in kinds.get(WEIGHTS, {}).items() if is_copy(tensor)}
        self.parts = {kind: {n: p.tensor for n, p in pieces.items()} for kind, pieces in self._pieces.items()}
        self.packs: dict[str, TensorPack] = {kind: pack(kind, tensors) for kind, tensors in self.parts.items()}
        self._shapes = {
            kind: {name: list(tensor.shape) for name, tensor in tensors.items()} for kind, tensors in kinds.items()
        }

    def _chosen(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
        """What this process copies: of the model all it has, of the rest what no other writes."""
        pieces = {name: piece_of(tensor) for name, tensor in tensors.items()}
        if kind == WEIGHTS:
            return pieces
        return {
            name: piece
            for name, piece in pieces.items()
            if (not is_copy(tensors[name]) and piece.tensor.numel() if is_dtensor(tensors[name]) else self._is_first)
        }

    @property
    def _is_first(self) -> bool:
        return self.together.rank == 0

    def files(self) -> tuple[dict[str, list[Chunk]], dict[str, Any]]:
        """Once everything is copied: this process's files, and what the first one must know for the index."""
        written: dict[str, list[Chunk]] = {}
        said: dict[str, Any] = {}
        for kind, pack in self.packs.items():
            chunks = pack.chunks()
            if kind == WEIGHTS:
                name, tensors = self._whole_model(pack)
                said[kind] = {"names": sorted(tensors), "bytes": sum(t.nbytes for t in tensors.values())}
                chunks = file_chunks(tensors)
            else:
                name = shard_name(kind, self.together.rank, self.together.size)
                said[kind] = {n: [p.offset, list(p.tensor.shape)] for n, p in self._pieces[kind].items()}
                tensors = dict(pack.views)
            if tensors:
                written[name] = chunks
        return written, said

    def _whole_model(self, pack: TensorPack) -> tuple[str, dict[str, Tensor]]:
        own = {name: piece._replace(tensor=pack.views[name]) for name, piece in self._pieces[WEIGHTS].items()}
        tensors = self.together.whole_tensors(own, self._copies)
        if self._convert is not None:
            tensors = self._convert(tensors)
        return shard_name(WEIGHTS, self.together.rank, self._writers()), tensors

    def _writers(self) -> int:
        """How many processes have a tensor of the model to write."""
        sizes = {name: nbytes(piece) for name, piece in self._pieces[WEIGHTS].items()}
        return max(owners(sizes, self.together.size).values(), default=0) + 1

    def index(self, said: list[dict[str, Any]]) -> dict[str, str]:
        """The files that tell what is where; written by the first process from what all have said."""
        texts: dict[str, str] = {}
        count = self.together.size
        if WEIGHTS in self._pieces and (writers := self._writers()) > 1:
            where = {
                name: shard_name(WEIGHTS, rank, writers)
                for rank in range(count)
                for name in said[rank][WEIGHTS]["names"]
            }
            texts[index_name(WEIGHTS)] = weights_index(where, sum(one[WEIGHTS]["bytes"] for one in said))
        for kind in self._pieces.keys() - {WEIGHTS}:
            if count > 1:
                names = [shard_name(kind, rank, count) for rank in range(count)]
                texts[index_name(kind)] = pieces_index(self._shapes[kind], [one[kind] for one in said], names)
        return texts

    @property
    def size(self) -> int:
        """Bytes that all processes together will write, about."""
        return sum(pack.size for pack in self.packs.values()) * self.together.size


class NothingToWrite:
    """The part of a process that could not capture its state: it takes part so that the others hear of it."""

    fill_by_all = False

    def __init__(self, together: WriterGroup) -> None:
        self.together = together

    def files(self) -> tuple[dict[str, list[Chunk]], Any]:
        return {}, {}

    def index(self, said: list[Any]) -> dict[str, str]:
        return {}


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Whole tensors in main memory, one at a time, where they are to be kept; every process must call this."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            kept[name] = full.cpu()
        del full
    return kept


def saved_by_all(folder: Path, files: SharedFiles) -> None:
    """Write a model alone, by all processes, into a folder that is there for good; nothing is published."""
    for kind, pack in files.packs.items():
        pack.copy(files.parts[kind])
    if files.together.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    files.together.exchange(None)
    written, said = files.files()
    for name, chunks in written.items():
        with (folder / name).open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
    heard = files.together.exchange(said)
    if files.together.rank == 0:
        for name, text in files.index(heard).items():
            (folder / name).write_text(text, encoding="utf-8")
        keep_newer_form(folder)
    files.together.exchange(None)
