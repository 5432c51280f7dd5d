#!/usr/bin/env python
"""A rare class, one sample of 100: with class weights, with balanced sampling, and with neither.

    python examples/unbalanced/fraud.py --out curves.png

The three runs train the same network for the same number of steps. The script prints what each
reaches on a test set and draws their precision-recall curves. `towerpack report train_log/fraud/*`
compares the runs. About 10 seconds on two cores.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

# Before TensorFlow, which then loads with the faster convolutions.
from towerpack import (
    BatchData,
    ClassWeightData,
    DataFromArrays,
    FullyConnected,
    InferenceRunner,
    ModelDesc,
    PrecisionRecallCurve,
    SimpleTrainer,
    TrainConfig,
    launch_train_with_config,
    logger,
    optimizer,
    set_random_seed,
)
from towerpack.callbacks.inferencers import average_precision, precision_recall_curve

# isort: split
import tensorflow as tf

SAMPLES, RARE, FEATURES, BATCH = 20_000, 0.01, 8, 100
RUNS = {"neither": None, "class weights": "balanced", "resampling": "resample"}


def payments(seed):
    """Two classes that overlap, each a mixture of Gaussians: one of 100 payments is a fraud."""
    centres = np.random.default_rng(0).normal(0, 1.3, (2, 4, FEATURES))  # class, part, feature
    rng = np.random.default_rng(seed)
    label = (rng.random(SAMPLES) < RARE).astype(np.int32)
    x = centres[label, rng.integers(4, size=SAMPLES)] + rng.normal(0, 1.1, (SAMPLES, FEATURES))
    return x.astype(np.float32), label


class Model(ModelDesc):
    def __init__(self, weighted):
        self.weighted = weighted

    def inputs(self):
        specs = [
            tf.TensorSpec([None, FEATURES], tf.float32, "x"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]
        return [*specs, tf.TensorSpec([None], tf.float32, "weight")] if self.weighted else specs

    def build_graph(self, x, label, weight=1.0):
        hidden = FullyConnected("hidden0", x, 64, activation=tf.nn.relu)
        hidden = FullyConnected("hidden1", hidden, 32, activation=tf.nn.relu)
        logit = FullyConnected("logit", hidden, 1)[:, 0]
        tf.sigmoid(logit, name="prob")
        cost = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(label, tf.float32), logit)
        return tf.reduce_mean(weight * cost, name="cost")

    def optimizer(self):
        return optimizer.Adam(1e-3)


def train(class_weight, train_set, test_set, epochs):
    """Trains one network and returns its probabilities for the test set."""
    set_random_seed(0)
    # Resampling shuffles by itself.
    source = DataFromArrays(*train_set, shuffle=class_weight != "resample")
    flow = ClassWeightData(source, class_weight)
    weighted = class_weight == "balanced"
    # The tower has an input for weights, and no sample of a test counts more than another.
    test = ClassWeightData(DataFromArrays(*test_set), {0: 1, 1: 1} if weighted else None)
    trainer = SimpleTrainer()
    config = TrainConfig(
        model=Model(weighted),
        dataflow=BatchData(flow, BATCH),
        callbacks=[InferenceRunner(BatchData(test, 1000), PrecisionRecallCurve())],
        steps_per_epoch=SAMPLES // BATCH,  # an epoch of the resampled flow has more
        max_epoch=epochs,
    )
    launch_train_with_config(config, trainer)
    return np.asarray(trainer.get_predictor(["x"], ["prob"])(test_set[0])[0])


def decided(probability, label, threshold):
    """Precision, recall and the number of alarms if all above a threshold are called a fraud."""
    alarm = probability > threshold
    hits = np.sum(alarm & (label == 1))
    return hits / max(alarm.sum(), 1), hits / np.sum(label == 1), int(alarm.sum())


def draw(axes, found, label, marks):
    for name, probability in found.items():
        recall, precision = precision_recall_curve(probability, label == 1)
        (line,) = axes.plot(recall, precision, label=name)
        for threshold, marker in marks[name].items():
            p, r, _ = decided(probability, label, threshold)
            text = f"{name}, above {threshold}"
            axes.plot(r, p, marker, color=line.get_color(), markersize=8, label=text)
    axes.set(xlabel="recall", ylabel="precision", title="1 fraud in 100 payments", ylim=(0, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--logdir", type=Path, default=Path("train_log/fraud"))
    parser.add_argument("--out", type=Path, help="a PNG for the curves")
    options = parser.parse_args()

    train_set, test_set = payments(2 * options.seed + 1), payments(2 * options.seed + 2)
    label = test_set[1]
    found = {}
    for name, class_weight in RUNS.items():
        logger.set_logger_dir(options.logdir / name.replace(" ", "-"), "d")
        found[name] = train(class_weight, train_set, test_set, options.epochs)

    # Balancing raises the probabilities: what would be RARE without it becomes about 0.5.
    marks = {name: {0.5: "o"} for name in RUNS}
    marks["neither"][RARE] = "s"
    print(f"\n{'':15s} threshold  precision  recall  alarms  average precision  mean probability")
    for name, probability in found.items():
        average = average_precision(*precision_recall_curve(probability, label == 1))
        for threshold in marks[name]:
            precision, recall, alarms = decided(probability, label, threshold)
            print(
                f"{name:15s} {threshold:9.2f}  {precision:9.3f}  {recall:6.3f}  {alarms:6d}  "
                f"{average:17.3f}  {probability.mean():16.3f}"
            )
    print(f"{label.sum()} of {len(label)} payments of the test set are frauds")
    if options.out:
        figure = Figure(figsize=(6, 4.2), dpi=90, layout="tight")
        draw(figure.subplots(), found, label, marks)
        figure.savefig(options.out)


if __name__ == "__main__":
    main()
