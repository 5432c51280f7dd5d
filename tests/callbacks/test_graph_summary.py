"""TensorBoard's own graph plugin reads what a run wrote."""

from __future__ import annotations

import pytest

from tests.tiny_model import TinyModel, tiny_flow
from towerpack.core import logger
from towerpack.monitor import TFEventWriter
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config


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
