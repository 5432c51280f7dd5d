"""Summaries of the tower, its graph and its variables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.callbacks.training import STEPS, Model, run
from tests.tiny_model import TinyModel, tiny_flow
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    MergeAllSummaries,
    MovingAverageSummary,
    ProcessTensors,
    SimpleMovingAverage,
)
from towerpack.core import logger
from towerpack.models import FullyConnected, ModelTable, model_summary
from towerpack.monitor import TFEventWriter
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config


def test_summaries_are_computed_with_the_last_step_of_an_epoch_only():
    result = run([MergeAllSummaries()], epochs=3)
    assert result.alone == [STEPS, 2 * STEPS, 3 * STEPS]
    steps = [step for step, name, _ in result.monitor.scalars if name == "input-rms"]
    assert steps == result.alone


def test_summaries_every_period_steps():
    result = run([MergeAllSummaries(period=4)], epochs=2)
    assert result.alone == [4, 6, 10, 12]  # counted in each epoch anew, as tensorpack did
    with pytest.raises(ValueError, match="period >= 0"):
        MergeAllSummaries(-1)


def test_a_tower_without_summaries_fuses_to_the_end():
    class Silent(Model):
        def build_graph(self, x, label):
            return super(Model, self).build_graph(x, label)

    assert run([MergeAllSummaries(period=2)], epochs=2, model=Silent()).alone == []


def test_moving_averages_resume():
    whole = run([MovingAverageSummary()], epochs=3)
    resumed = run([MovingAverageSummary()], epochs=3, resume=whole.saved[0])
    assert resumed.monitor.of("cost") == whole.monitor.of("cost")[1:]


def test_simple_moving_average_over_the_last_steps():
    costs = []
    average = SimpleMovingAverage("cost", window=8)
    result = run([ProcessTensors("cost:0", costs.append), average], epochs=2)
    expected = [np.mean(costs[:6]), np.mean(costs[4:12])]
    assert result.monitor.of("cost/SMA") == pytest.approx(expected)


def test_a_single_name_is_one_tensor_and_must_be_a_scalar():
    assert SimpleMovingAverage("cost", 2).names == ["cost"]
    with pytest.raises(ValueError, match="'prob' has shape"):
        run([SimpleMovingAverage("prob", 2)], epochs=1)
    with pytest.raises(ValueError, match="at least one step"):
        SimpleMovingAverage("cost", 0)


def test_averages_have_points_within_a_long_epoch_and_each_step_once():
    result = run([MovingAverageSummary()], epochs=2, steps=250)
    steps = [step for step, name, _ in result.monitor.scalars if name == "cost"]
    assert steps == [100, 200, 250, 350, 450, 500]
    assert result.alone == [100, 200, 350, 450]
    short = run([MovingAverageSummary()], epochs=2, steps=100)
    assert [step for step, name, _ in short.monitor.scalars if name == "cost"] == [100, 200]
    assert short.alone == []


@pytest.mark.parametrize(
    "name, summarized, expected",
    [("cost", True, "cost"), ("total_loss", False, "total_loss"), (None, False, "cost")],
)
def test_the_cost_is_averaged_also_if_the_tower_does_not_ask_for_it(name, summarized, expected):
    class Own(Model):
        def build_graph(self, x, label):
            cost = super().build_graph(x, label) if summarized else self.plain(x)
            return cost

        def plain(self, x):
            return tf.reduce_mean(tf.square(FullyConnected("fc", x, 1)), name=name)

    for eager in (False, True):
        trainer = SimpleTrainer(eager=eager, jit=False)
        result = run([MovingAverageSummary()], epochs=1, model=Own(), trainer=trainer)
        assert list(result.trainer.cost_names) == [expected]
        assert len(result.monitor.of(expected)) == 1


def test_a_cost_does_not_take_the_name_of_another_average():
    class Own(Model):
        def build_graph(self, x, label):
            return super().build_graph(x, label) + 1.0

    result = run([MovingAverageSummary()], epochs=1, model=Own())
    (part,), (whole,) = result.monitor.of("cost"), result.monitor.of("training_cost")
    assert whole == pytest.approx(part + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what TensorBoard vendors
@pytest.mark.parametrize("options", [{}, {"jit": True}, {"eager": True}], ids=str)
def test_tensorboard_shows_the_graph_of_a_run(tmp_path, options):
    from google.protobuf import text_format
    from tensorboard import context
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.graph.graphs_plugin import GraphsPlugin

    logger.set_logger_dir(tmp_path / "run", "d")
    config = TrainConfig(
        model=TinyModel(), dataflow=tiny_flow(), monitors=[TFEventWriter()], max_epoch=1
    )
    launch_train_with_config(config, SimpleTrainer(**options))

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
    plugin = GraphsPlugin(TBContext(logdir=str(tmp_path), data_provider=provider))
    request = context.RequestContext()
    runs = plugin.info_impl(request, experiment="")
    assert runs["run"]["run_graph"]
    text, _ = plugin.graph_impl(request, "run", None, is_conceptual=False, experiment="")
    nodes = {node.name for node in text_format.Parse(text, GraphDef()).node}
    assert {"prob", "cost"} <= nodes


def test_every_run_logs_the_table_of_its_model_and_keeps_it(capsys, tmp_path):
    logger.set_logger_dir(tmp_path / "run", "d")
    config = TrainConfig(model=TinyModel(), dataflow=tiny_flow(), monitors=[], max_epoch=1)
    launch_train_with_config(config, SimpleTrainer())
    logged = capsys.readouterr().err
    assert logged.count("the model:") == 1
    table = ModelTable.from_dict(json.loads((tmp_path / "run" / "model.json").read_text()))
    assert str(table) in logged.replace("\r", "")
    expected = model_summary(TinyModel())
    assert table.rows == expected.rows
    assert table.parameters == expected.parameters
    assert table.optimizer == expected.optimizer
    assert table.flops > 0
