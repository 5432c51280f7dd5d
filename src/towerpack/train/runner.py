"""Runs the steps that a builder builds: one, many in a call, or many compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from towerpack._tensorflow import tf
from towerpack.input_source.buffer import Batches, as_tensor
from towerpack.tower.determinism import tracing_with
from towerpack.tower.summary import ALL_SUMMARIES
from towerpack.train.autotune import COMPILED
from towerpack.train.builder import StepBuilder
from towerpack.train.non_finite import all_finite


class Outcome(NamedTuple):
    """What is known after a call."""

    steps: int
    finite: bool
    cost: float  # of the last step; of the one that failed
    fetched: dict[str, Any]
    suspects: int = 1  # the last steps of which one failed, if it did
    quick: bool = False  # whether only small weights were checked in each step


class CannotCompile(Exception):
    """XLA refuses the step; no step was run."""


class StepRunner:
    """Traces the step of a builder and calls it, with batches as arguments.

    `specs` are those of one batch; `prepare` is added to the graph before the steps of a call.
    """

    def __init__(
        self,
        builder: StepBuilder,
        specs: Sequence[Any],
        seed: int | None,
        prepare: Callable[[], None],
    ):
        self.builder, self.specs, self._seed = builder, list(specs), seed
        self._prepare = prepare
        self._options = builder.trainer.options
        self.towers = builder.trainer.replication.count
        self.traced: dict[Any, Any] = {}  # by what they do; a change of the step clears it
        self._compiled_shapes: list[Any] | None = None
        self.version = 0  # how often the step has changed

    def single_step(self, fetches: tuple[str, ...] = (), tower: int = 0) -> Any:
        """The traced function of one step, which takes the inputs of all towers."""
        if (tower, fetches) not in self.traced:

            def step(*inputs: Any) -> tuple[Any, Any, dict[str, Any]]:
                self._prepare()
                result = self.builder.step(fetches, self._by_tower(inputs))
                return result.finite(), result.cost, result.fetched

            # XLA does not write files.
            writes = ALL_SUMMARIES in fetches and self.builder.writes_summaries()
            jit = True if self._options.jit is True and not writes else None
            with tracing_with(self._seed):
                traced = tf.function(step, autograph=False, jit_compile=jit).get_concrete_function(
                    *self.specs * self.towers
                )
            self.traced[tower, fetches] = traced
            self.builder.adopt(traced)
        return self.traced[tower, fetches]

    def one(self, batches: Batches, fetches: tuple[str, ...] = ()) -> Outcome:
        """Runs one step, on a batch for each tower."""
        inputs = [tensor for t in range(self.towers) for tensor in batches.tensors(t)]
        step = self.single_step(fetches)  # the trace makes the variables
        if self._options.eager:
            result = self.builder.step(fetches, self._by_tower(inputs))
            finite, cost, fetched = result.finite(), result.cost, result.fetched
        else:
            finite, cost, fetched = step(*inputs)
        if bool(finite):
            return Outcome(1, True, 0.0, fetched)
        return Outcome(1, False, float(cost), fetched)

    def many(self, mode: str, batches: Batches) -> Outcome:
        """Runs steps on all of the batches, unless one fails, in one call if they are stacked.

        Raises:
            CannotCompile: XLA refuses the step.
        """
        steps = batches.count // self.towers
        compiled = mode == COMPILED and steps > 0 and batches.stacked
        shapes = [array.shape for array in batches.stacks[0]] if compiled else None
        if steps == 1 and (shapes is None or shapes != self._compiled_shapes):
            return self.one(batches)
        stacks = [[as_tensor(array) for array in stack] for stack in batches.stacks]
        # The row of each tower's batch in the first step, and how far it is to the next.
        shared = len(stacks) == 1
        first = [batches.first + (tower if shared else 0) for tower in range(self.towers)]
        stride = self.towers if shared else 1
        arguments = [
            tf.constant(first),
            tf.constant(stride),
            tf.constant(steps),
            *[array for t in range(self.towers) for array in stacks[t % len(stacks)]],
        ]
        if not compiled:
            return self._call(self._loop(), arguments)
        if self._compiled_shapes is None or COMPILED not in self.traced:
            self._compile(arguments)
            self._compiled_shapes = shapes
        if shapes != self._compiled_shapes:
            return self._one_by_one(batches)
        return self._call(self.traced[COMPILED], arguments, quick=True)

    def forget(self) -> None:
        """Has the step traced again, since it has changed."""
        self.traced.clear()
        self._compiled_shapes = None
        self.version += 1

    def catch_up(self, version: int) -> None:
        """Has the step traced again where it has changed on another rank.

        Collectives find each other by the order in which they were traced.
        """
        if self.version < version:
            self.forget()
            self.version = version

    def close(self) -> None:
        """Ends what was started."""

    def _one_by_one(self, batches: Batches) -> Outcome:
        batch, rest = batches.split(self.towers)
        outcome, done = self.one(batch), 1
        while outcome.finite and rest.count:
            batch, rest = rest.split(self.towers)
            outcome, done = self.one(batch), done + 1
        return outcome._replace(steps=done)

    def _call(self, loop: Any, arguments: Sequence[Any], quick: bool = False) -> Outcome:
        done, finite, sound, cost = loop(*arguments)
        steps, all_sound = int(done), bool(finite) and bool(sound)
        if all_sound:
            return Outcome(steps, True, 0.0, {})
        # If the cost and the small weights were finite in every step, the step is not known.
        suspects = steps if bool(finite) else 1
        return Outcome(steps, False, float(cost), {}, suspects, quick and not bool(finite))

    def _loop(self, tower: int = 0) -> Any:
        if ("loop", tower) not in self.traced:
            stacked = [tf.TensorSpec(_stacked(spec.shape), spec.dtype) for spec in self.specs]
            with tracing_with(self._seed):
                self.traced["loop", tower] = self._function(stacked, compiled=False)
        return self.traced["loop", tower]

    def _compile(self, arguments: Sequence[Any]) -> None:
        stack = arguments[3:]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in stack]
        first, stride, _ = arguments[:3]
        try:
            with tracing_with(self._seed):
                loop = self._function(specs, compiled=True)
            loop(first, stride, tf.constant(0), *stack)  # compiles, and runs no step
        except (tf.errors.OpError, ValueError, TypeError) as error:
            message = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise CannotCompile(message) from error
        self.traced[COMPILED] = loop

    def _function(self, stacked: Sequence[Any], compiled: bool) -> Any:
        """A function that runs steps on stacked batches; ends after a step that failed.

        Equal to single steps, bit for bit, unless compiled. A compiled step is so short that
        checking all weights would be noticeable. So each step checks its cost and small weights,
        such as biases, whose gradients are sums of what flows through a layer. All weights are
        checked when the call is over.
        """

        def run(first: Any, stride: Any, count: Any, *arrays: Any) -> tuple[Any, Any, Any, Any]:
            self._prepare()
            weights: list[Any] = []
            stacks = self._by_tower(arrays)

            def body(done: Any, *_: Any) -> tuple[Any, Any, Any]:
                # Not `array[row]`: XLA would take the index of a slice for a constant, and compile
                # again for every value of it.
                rows = tf.unstack(first + done * stride)
                inputs = [
                    [tf.gather(array, row) for array in stack]
                    for row, stack in zip(rows, stacks, strict=True)
                ]
                result = self.builder.step((), inputs)
                weights[:] = [variable for variable, _ in result.weights]
                return done + 1, result.sum_is_finite(quick=compiled), result.cost

            done, finite, cost = _steps(count, body, weights)
            return done, finite, all_finite(weights) if compiled else tf.constant(True), cost

        run.__name__ = "compiled" if compiled else "loop"
        if not compiled:
            stacked = [*stacked] * self.towers
        return tf.function(
            run, autograph=False, jit_compile=compiled or None
        ).get_concrete_function(
            tf.TensorSpec([self.towers], tf.int32),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.int32),
            *stacked,
        )

    def _by_tower(self, tensors: Sequence[Any]) -> list[Sequence[Any]]:
        size = len(self.specs)
        return [tensors[t * size : (t + 1) * size] for t in range(self.towers)]


class AsyncRunner(StepRunner):
    """Runs each tower in a thread of its own; they meet at the end of a call."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._threads = ThreadPoolExecutor(self.towers, thread_name_prefix="tower")

    def one(self, batches: Batches, fetches: tuple[str, ...] = ()) -> Outcome:
        if self._options.eager:  # in turn, since a debugger follows one line at a time
            outcomes = []
            for tower in range(self.towers):
                with self.builder.trainer.replication.at(tower):
                    outcomes.append(super().one(batches, fetches if tower == 0 else ()))
            return _combined(outcomes)
        inputs = [tensor for t in range(self.towers) for tensor in batches.tensors(t)]
        steps = [self._of_tower(self.single_step, (), t) for t in range(1, self.towers)]
        others = [self._threads.submit(step, *inputs) for step in steps]
        outcomes = [super().one(batches, fetches)]
        for other in others:
            finite, cost, _ = other.result()
            outcomes.append(Outcome(1, bool(finite), float(cost), {}))
        return _combined(outcomes)

    def _call(self, loop: Any, arguments: Sequence[Any], quick: bool = False) -> Outcome:
        loops = [self._of_tower(self._loop, t) for t in range(1, self.towers)]
        call = super()._call
        others = [self._threads.submit(call, other, arguments) for other in loops]
        outcomes = [call(loop, arguments, quick), *(other.result() for other in others)]
        return _combined(outcomes)

    def _of_tower(self, trace: Callable[..., Any], *arguments: Any) -> Any:
        with self.builder.trainer.replication.at(arguments[-1]):
            return trace(*arguments)

    def close(self) -> None:
        self._threads.shutdown()


def _combined(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of all towers: that of the first, unless another one failed."""
    failed = [outcome for outcome in outcomes if not outcome.finite]
    first = outcomes[0]
    return failed[0]._replace(steps=first.steps, fetched=first.fetched) if failed else first


def _stacked(shape: Any) -> Any:
    return None if shape.rank is None else [None, *shape]


def _steps(count: Any, body: Callable[..., Any], weights: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Runs `body(steps done, ...)` until `count` steps are done or one leaves a NaN or infinity.

    It returns (steps done, finite, cost), where `finite` may be false because a sum of large
    values has overflowed. The inner loop ends then, and the cost and the weights, which the body
    has listed, are checked one by one: outside of it, where that costs nothing as long as all is
    well.
    """

    def to_do(done: Any, finite: Any, _: Any) -> Any:
        return (done < count) & finite

    def stretch(*state: Any) -> tuple[Any, Any, Any]:
        done, finite, cost = tf.while_loop(to_do, body, state, parallel_iterations=1)
        return done, tf.cond(finite, lambda: finite, lambda: all_finite([cost, *weights])), cost

    state = (tf.constant(0), tf.constant(True), tf.constant(0.0, tf.float64))
    return tf.while_loop(to_do, stretch, state, parallel_iterations=1)
