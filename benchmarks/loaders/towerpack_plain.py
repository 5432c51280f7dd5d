"""towerpack without its best: W3f without workers, W4 image by image."""

from loaders import work
from loaders.towerpack_flows import AHEAD, Epochs, drawing
from towerpack.dataflow import BatchData, DataFromArrays, MapData, MultiProcessRunner

WORKLOADS = ["W3f", "W4"]


def open_flow(workload, directory):
    size = work.BATCH[workload]
    if workload == "W3f":
        source = DataFromArrays(*work.small_arrays(), shuffle=True)
        return BatchData(MapData(source, lambda dp: work.per_sample(*dp)), size)
    source = DataFromArrays(*work.tiny_images(), shuffle=True)
    flow = MapData(
        source, lambda dp, rng: [work.pad_crop_flip_normalize(dp[0], drawing(rng, 3)), dp[1]]
    )
    return Epochs(MultiProcessRunner(BatchData(flow, size), AHEAD, 2))
