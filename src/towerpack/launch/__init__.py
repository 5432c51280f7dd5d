"""`towerpack launch`: starts the ranks of a training run, and restarts all when one fails.

The supervisor of each host starts that host's ranks as child processes, and checks their exits and
their progress. It never imports TensorFlow, and knows of the training only what
`core.cluster.Progress` writes. When a rank fails, its peers are stuck in a collective, so all ranks
are ended and started again, and the trainer resumes from the last checkpoint.

| file | does |
| --- | --- |
| `ranks.py` | one rank: its process, its output, how it failed |
| `guard.py` | ends what the ranks have started after the supervisor |
| `supervisor.py` | one attempt after another, until all ranks are done or a restart cannot help |
| `restarts.py` | what an attempt ended with, and whether another one follows |
| `rendezvous.py`, `node0.py` | the supervisors of several hosts exchange addresses and outcomes |
| `nodes.py` | which host of how many this is, from the options or the scheduler |
| `ray.py` | starts launchers on a Ray cluster, and again when it loses or gains hosts |
"""

__all__: list[str] = []
