"""Our graph, on one device or several, with a training loop of the user's own."""

from functools import partial

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays
from towerpack.checkpoint import SmartInit, save_checkpoint
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import FeedInput, QueueInput
from towerpack.train import (
    AsyncMultiGPUTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
)

TRAINERS = {
    "one device": SimpleTrainer,
    "shared": partial(SyncMultiGPUTrainer, 2),
    "replicated": partial(SyncMultiGPUTrainerReplicated, 2),
}


def flow(batch):
    return BatchData(DataFromArrays(*tiny_arrays(), shuffle=False), batch)


def set_up(trainer, source):
    model = TinyModel()
    trainer.setup_graph(model.input_signature, source, model.build_graph, model.optimizer)
    return trainer


def reference(steps):
    """Softmax regression in numpy, batches of 10 from weights of zero: weights and costs."""
    x, label = tiny_arrays()
    w, b, costs = np.zeros([4, 3]), np.zeros([3]), []
    for step in range(steps):
        rows = slice(step % 6 * 10, step % 6 * 10 + 10)
        logits = x[rows] @ w + b
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        costs.append(-np.log(probabilities[range(10), label[rows]]).mean())
        error = (probabilities - np.eye(3)[label[rows]]) / 10
        w, b = w - 0.5 * x[rows].T @ error, b - 0.5 * error.sum(0)
    return w, b, costs


@pytest.mark.parametrize("kind", TRAINERS)
def test_steps_train_like_a_loop_in_numpy(kind, tmp_path):
    path = save_checkpoint({"fc/W": np.zeros([4, 3], np.float32)}, tmp_path / "start")
    with TRAINERS[kind]() as trainer:
        set_up(trainer, QueueInput(flow(10 // trainer.batches_per_step)))
        trainer.initialize(SmartInit(path))  # of the first tower: the copies must follow
        costs = []
        for step in trainer.steps("cost"):
            costs.append(step["cost"])
            assert step["global_step"] == trainer.global_step == len(costs)
            if step["global_step"] == 14:
                break
        w, b, expected = reference(14)
        for store in trainer.stores:
            np.testing.assert_allclose(store["fc/W"], w, atol=1e-6)
            np.testing.assert_allclose(store["fc/b"], b, atol=1e-6)
        if trainer.batches_per_step == 1:  # else it is the cost of the first tower's half
            np.testing.assert_allclose(costs, expected, atol=1e-6)


def test_steps_end_with_the_data():
    with SimpleTrainer() as trainer:
        set_up(trainer, FeedInput(flow(10), infinite=False))
        assert [step["global_step"] for step in trainer.steps()] == [1, 2, 3, 4, 5, 6]
        assert list(trainer.steps()) == []


def test_run_step_needs_only_the_graph():
    for trainer in (SimpleTrainer(), AsyncMultiGPUTrainer(2)):
        with trainer:
            set_up(trainer, QueueInput(flow(10)))
            before = trainer.store["fc/W"].numpy()
            trainer.run_step()
            trainer.run_step()
            assert trainer.global_step == 2
            assert np.abs(trainer.store["fc/W"].numpy() - before).max() > 0
