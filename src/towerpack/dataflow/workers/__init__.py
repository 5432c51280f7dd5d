"""Worker processes: how they are started, given work, watched, replaced and ended.

Read in this order: `process` (start a worker, describe its death), `forkserver` and `startup` (what
happens until its own code runs), `payload` (objects sent to it), `shared_memory` and `packing`
(datapoints in memory that both ends map), `messages`, `worker` (its loop), `pool` (all workers of a
stage). The processes of a predictor use the first three.
"""
