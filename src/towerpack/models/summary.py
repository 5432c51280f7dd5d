"""The table of a model: its layers, their shapes, parameters, operations and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.models.layer_graph import Node, Part, Traced
from towerpack.models.model_desc import ModelDesc, ModelDescBase
from towerpack.optimizer import as_optimizer
from towerpack.tower import TowerContext, TowerFunc, TracedTower, VariableStore
from towerpack.tower.store import GLOBAL_STEP
from towerpack.tower.tower_func import TowerTensorHandle

REASONS_SHOWN = 2  # per layer, for frozen variables
ROWS_LOGGED = 60  # at the start of a run; a longer table is shortened to its beginning and end
_HEAD = ("layer", "kind", "output", "parameters", "FLOPs", "memory", "frozen")
_RIGHT = (3, 4, 5)  # columns of numbers
_logging = True


@dataclass(frozen=True)
class Row:
    """A layer, or what belongs to no layer.

    `flops` and `memory`, the bytes of its output, are None if a size is unknown. `uncounted` are
    the types of operations that `flops` leaves out, with their numbers.
    """

    name: str
    kind: str
    output: str
    parameters: int
    trainable: int
    flops: int | None
    memory: int | None
    uncounted: dict[str, int] = field(default_factory=dict)
    frozen: str = ""


@dataclass(frozen=True)
class ModelTable:
    """What `model_summary` returns. Prints as a table; `rich` prints it with lines and colours.

    `flops` and the memory of `activations` are those of a forward call with one sample, or with
    the whole `batch` if the model fixes its size. `weights`, `state` (such as moving averages) and
    `optimizer` are bytes; the last is None if the slots of the optimizer are not known. `trainable`
    is None for the table of a checkpoint, which does not say what was trained.
    """

    rows: list[Row]
    parameters: int
    trainable: int | None
    weights: int
    state: int
    optimizer: int | None
    batch: int | None = None
    note: str = ""
    nodes: list[Node] = field(default_factory=list)  # the boxes of the picture

    @property
    def flops(self) -> int:
        """Of all rows, without operations that are `uncounted`."""
        return sum(row.flops or 0 for row in self.rows)

    @property
    def activations(self) -> int:
        return sum(row.memory or 0 for row in self.rows)

    @property
    def uncounted(self) -> dict[str, int]:
        total = Counter[str]()
        for row in self.rows:
            total.update(row.uncounted)
        return dict(total)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Any) -> ModelTable:
        return msgspec.convert(content, cls)

    def cells(self) -> list[tuple[str, ...]]:
        """The texts of the rows and their sums."""
        cells = [
            (
                row.name,
                row.kind,
                row.output,
                f"{row.parameters:,}",
                _flops_text(row.flops, row.uncounted),
                "" if row.memory is None else _bytes_text(row.memory),
                row.frozen,
            )
            for row in self.rows
        ]
        stopped = self.parameters - (self.parameters if self.trainable is None else self.trainable)
        frozen = f"{stopped:,}" if stopped else ""
        known = any(row.flops is not None for row in self.rows)
        flops = _flops_text(self.flops if known else None, self.uncounted)
        memory = _bytes_text(self.activations) if known else ""
        return [*cells, ("total", "", "", f"{self.parameters:,}", flops, memory, frozen)]

    def totals(self) -> str:
        """The sums in sentences, and what they leave out."""
        per = "one sample" if self.batch is None else f"a batch of {self.batch}"
        slots = "" if self.optimizer is None else f", optimizer {_bytes_text(self.optimizer)}"
        memory = f"memory: weights {_bytes_text(self.weights)}, state {_bytes_text(self.state)}"
        if self.trainable is None:
            return f"{memory}{slots}\n{self.note}"
        lines = [
            f"{self.trainable:,} of {self.parameters:,} parameters are trained",
            f"{memory}{slots}, outputs of layers {_bytes_text(self.activations)} for {per}",
            f"FLOPs are those of a forward call with {per}; a multiply-add counts two",
        ]
        if self.uncounted:
            kinds = ", ".join(f"{number} {kind}" for kind, number in self.uncounted.items())
            lines.append(f"not counted, because their FLOPs are unknown: {kinds}")
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def text(self, most_rows: int | None = None) -> str:
        """The table as plain text; of more than `most_rows`, those in the middle are left out."""
        *rows, total = self.cells()
        if most_rows is not None and len(rows) > most_rows:
            half, hidden = most_rows // 2, len(rows) - most_rows
            rows[half:-half] = [(f"... {hidden} more", *[""] * (len(_HEAD) - 1))]
        cells = [_HEAD, *rows, total]
        if not any(row[-1] for row in cells[1:]):
            cells = [row[:-1] for row in cells]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                text.rjust(width) if column in _RIGHT else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        return "\n".join([*lines, self.totals()])

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 (rich is not loaded to train)
        from rich.table import Table  # noqa: PLC0415

        table = Table()
        for column, head in enumerate(_HEAD):
            table.add_column(head, justify="right" if column in _RIGHT else "left")
        *rows, total = self.cells()
        for row in rows:
            table.add_row(*row)
        table.add_section()
        table.add_row(*total, style="bold")
        return Group(table, self.totals())


def model_summary(model: Any, inputs: Sequence[Any] | None = None) -> ModelTable:
    """The layers of a model with shapes, parameters, FLOPs and memory.

    `model` is a `ModelDesc`, a `TowerFunc`, a Keras model, or a function of tensors. `inputs`
    (a list of `tf.TensorSpec` with names) is needed for a function and for a Keras model that has
    no inputs yet, and replaces the inputs of others. The model is built anew for inference, with
    variables of its own, except that a Keras model is traced as it is. A layer that is called
    several times has a row for each call, and its parameters count once.

    >>> from towerpack import FullyConnected
    >>> x = tf.TensorSpec([None, 4], name="x")
    >>> table = model_summary(lambda x: FullyConnected("fc", x, 3), [x])
    >>> table.parameters, table.flops
    (15, 27)
    """
    tower_func, optimizer = _as_tower(model, inputs)
    store = VariableStore()
    tower = TracedTower(tower_func, store)
    of_model = list(store.variables)
    if isinstance(model, ModelDesc) and type(model).optimizer is not ModelDesc.optimizer:
        optimizer = _slots(model.optimizer, store, of_model)
    return _table(tower.handle, store, of_model, optimizer)


def table_of_tower(
    handle: TowerTensorHandle, store: VariableStore, slots: Iterable[str]
) -> ModelTable:
    """The table of a tower that was traced for training; `slots` are names of other variables."""
    others = set(slots)
    of_model = [name for name in store.saved() if name not in others]
    return _table(handle, store, of_model, _bytes(store[n] for n in others - {GLOBAL_STEP}))


def disable_layer_logging() -> None:
    """Stops this process from logging tables of layers."""
    global _logging
    _logging = False


def log_model(table: ModelTable) -> None:
    """Logs the table, shortened if it is long, unless `disable_layer_logging` was called."""
    if _logging:
        logger.info("the model:\n%s", table.text(ROWS_LOGGED))


def _as_tower(model: Any, inputs: Sequence[Any] | None) -> tuple[TowerFunc, int | None]:
    """The tower, and the bytes of the optimizer if it exists."""
    if isinstance(model, ModelDescBase):
        return TowerFunc(model.build_graph, inputs or model.input_signature), None
    if isinstance(model, TowerFunc):
        return TowerFunc(model.func, inputs or model.signature), None
    if isinstance(model, tf.keras.Layer):
        optimizer: Any = getattr(model, "optimizer", None)
        built = optimizer is not None and optimizer.built
        slots = _bytes(v.value for v in optimizer.variables) if built else None
        return TowerFunc(_call_of(model), inputs or _keras_inputs(model)), slots
    if not callable(model):
        raise TypeError(
            "expected a ModelDesc, a TowerFunc, a Keras model or a function of tensors, received "
            f"{model!r} ({type(model).__name__})"
        )
    if inputs is None:
        raise ValueError(
            f"{model!r} needs inputs=, a list of tf.TensorSpec with names, received None"
        )
    return TowerFunc(model, inputs), None


def _call_of(model: Any) -> Callable[..., Any]:
    structure = getattr(model, "input", None)
    if structure is None or not isinstance(structure, dict | list | tuple):
        return lambda *tensors: model(tensors[0] if len(tensors) == 1 else list(tensors))
    return lambda *tensors: model(tf.nest.pack_sequence_as(structure, tensors))


def _keras_inputs(model: Any) -> list[Any]:
    found = getattr(model, "inputs", None)
    if not found:
        raise ValueError(
            f"the Keras model {model.name!r} does not know its inputs; expected inputs=, a list of "
            "tf.TensorSpec with names"
        )
    flat = tf.nest.flatten(getattr(model, "input", found))
    return [tf.TensorSpec(x.shape, x.dtype, f"input_{n}") for n, x in enumerate(flat)]


def _slots(optimizer: Callable[[], Any], store: VariableStore, of_model: Sequence[str]) -> int:
    """The bytes that an optimizer of the model adds to the store."""

    def apply() -> None:
        with TowerContext("", is_training=True, store=store):
            made = as_optimizer(optimizer())
            weights = list(store.trainable().values())
            made.apply_gradients([(tf.zeros_like(weight), weight) for weight in weights])
        made.take_in_variables(store)

    tf.function(apply, autograph=False).get_concrete_function()
    before = {*of_model, GLOBAL_STEP}
    return _bytes(v for name, v in store.variables.items() if name not in before)


def _table(
    handle: TowerTensorHandle,
    store: VariableStore,
    of_model: Iterable[str],
    optimizer: int | None,
) -> ModelTable:
    traced = Traced(handle)
    variables = {name: store[name] for name in of_model}
    frozen, trained = store.frozen(), store.trainable()
    weights = {name: v for name, v in variables.items() if name in frozen or name in trained}
    state = [v for name, v in variables.items() if name not in weights]
    rows = []
    for part, owned in _owned(traced, weights):
        if not part.is_rest or part.flops or part.uncounted or owned:
            rows.append(_row(part, owned, frozen))
    return ModelTable(
        rows=rows,
        parameters=_count(weights.values()),
        trainable=_count(v for name, v in weights.items() if name not in frozen),
        weights=_bytes(weights.values()),
        state=_bytes(state),
        optimizer=optimizer,
        batch=traced.batch,
        note=traced.note,
        nodes=traced.picture(),
    )


def _owned(traced: Traced, weights: dict[str, Any]) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Each part with its weights; one that several parts share belongs to the first of them."""
    left, names = dict(weights), {id(v): name for name, v in weights.items()}
    owned: dict[int, dict[str, Any]] = {}
    for part in sorted(traced.parts, key=lambda part: part.is_rest):
        if part.variables is None:
            mine = [name for name in left if name.startswith(f"{part.name}/")]
        else:
            mine = [names[id(v)] for v in part.variables if names.get(id(v)) in left]
        owned[id(part)] = {name: left.pop(name) for name in mine}
    for part in traced.parts:
        yield part, owned[id(part)]
    for name, variable in left.items():
        yield Part(name, "variable", str(variable.shape.as_list()), flops=0), {name: variable}
    yield traced.rest, {}


def _row(part: Part, owned: dict[str, Any], frozen: dict[str, str]) -> Row:
    reasons = Counter[str]()
    for name, variable in owned.items():
        if name in frozen:
            reasons[frozen[name]] += _count([variable])
    total, stopped = _count(owned.values()), reasons.total()
    more = len(reasons) - REASONS_SHOWN
    shown = [*list(reasons)[:REASONS_SHOWN], *([f"{more} more"] if more > 0 else [])]
    amount = "all" if stopped == total else f"{stopped:,}"
    return Row(
        part.name,
        part.kind,
        part.output,
        parameters=total,
        trainable=total - stopped,
        flops=part.flops,
        memory=part.memory,
        uncounted=dict(part.uncounted),
        frozen=f"{amount}: {', '.join(shown)}" if reasons else "",
    )


def _count(variables: Iterable[Any]) -> int:
    return sum(int(variable.shape.num_elements()) for variable in variables)


def _bytes(variables: Iterable[Any]) -> int:
    return sum(int(v.shape.num_elements()) * v.dtype.size for v in variables)


def _flops_text(flops: int | None, uncounted: Mapping[str, int]) -> str:
    """With three digits; a `+` says that some operations are not counted."""
    if flops is None:
        return "?"
    return _scaled(flops, 1000, ("", " k", " M", " G", " T")) + ("+" if uncounted else "")


def _bytes_text(size: int) -> str:
    return _scaled(size, 1024, (" B", " KB", " MB", " GB", " TB"))


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    """The number with three digits and a unit.

    >>> [_scaled(n, 1000, ("", " k", " M")) for n in (999, 3_868_000, 999_999)]
    ['999', '3.87 M', '1,000 k']
    """
    if number < base:
        return f"{number:,}{units[0]}"
    power = min(int(math.log(number, base)), len(units) - 1)
    shown = number / base**power
    return f"{shown:,.0f}{units[power]}" if shown >= 99.95 else f"{shown:.3g}{units[power]}"
