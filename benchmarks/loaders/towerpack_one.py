"""towerpack in one process: the per-sample function of W3f without workers."""

from loaders import work

from towerpack.dataflow import BatchData, DataFromArrays, MapData

WORKLOADS = ["W3f"]


def open_flow(workload, directory):
    source = DataFromArrays(*work.small_arrays(), shuffle=True)
    return BatchData(MapData(source, lambda dp: work.per_sample(*dp)), work.BATCH[workload])
