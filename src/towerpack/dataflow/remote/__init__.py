"""Flows between processes and machines."""

from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions
from towerpack.dataflow.remote.receive import RemoteDataZMQ
from towerpack.dataflow.remote.send import send_dataflow_zmq

__all__ = ["CurveKeys", "LinkCounts", "LinkOptions", "RemoteDataZMQ", "send_dataflow_zmq"]
