"""The sum of one large gradient over ranks, as towerpack's trainer does it."""

from towerpack.train.distributed import ranks_of_run
from towerpack.train.packing import packed_sum

from towerpack._tensorflow import tf  # isort: skip

from trainers.serve import versions

from ranks import work


def summing(ranks, elements):
    """A function that adds up a vector of float32 over all ranks, and waits for the result."""
    gradient = tf.Variable(tf.zeros([elements]))

    @tf.function(autograph=False)
    def reduce():
        return packed_sum(ranks.sum, ranks.size, [gradient.read_value()], [tf.float32])

    return lambda: reduce()[0][:1].numpy()


def train(model, turns):
    ranks = ranks_of_run()
    turns.settings = f"{versions('tensorflow-cpu')}, gRPC"
    run = summing(ranks, work.ELEMENTS)
    run()
    while turns.done(1):
        run()
