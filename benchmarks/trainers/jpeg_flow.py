"""A flow that decodes, crops and flips JPEG files in two workers, by itself."""

import itertools

from loaders import work as images
from loaders.towerpack_flows import AHEAD, drawing

from towerpack.dataflow import BatchData, DataFromList, MapData, MultiProcessRunner, kept_workers
from trainers import work
from trainers.serve import versions

BATCH = 64


def make_flow(directory):
    files = images.files_of(directory)
    source = DataFromList([[f, i % work.CLASSES] for i, f in enumerate(files)], shuffle=True)
    flow = MapData(source, lambda dp, rng: [images.load_file(dp[0], drawing(rng, 5)), dp[1]])
    return MultiProcessRunner(BatchData(flow, BATCH), AHEAD, work.CORES)


def train(model, turns):
    turns.settings = f"{versions('towerpack')}, {work.CORES} workers"
    turns.skips_first_epoch = True  # kept workers have made batches of it before the turn began
    flow = make_flow(turns.directory)
    with kept_workers(flow):
        for epoch in itertools.count():
            batches = sum(1 for _ in flow.iterate(epoch))
            if not turns.done(batches):
                break
