"""Lightning as it comes: a module and `Trainer.fit`, with its progress bar, log and checkpoints."""

import tempfile
import warnings

import lightning
import torch
from torch.nn import functional

from trainers import torch_models
from trainers.serve import versions


class Module(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model, self.network = model, torch_models.NETWORKS[model]()

    def training_step(self, batch, _):
        images, labels = batch
        cost = functional.cross_entropy(self.network(images), labels)
        self.log("cost", cost)
        return cost

    def configure_optimizers(self):
        return torch_models.optimizer(self.model, self.network)


class TakeTurns(lightning.Callback):
    def __init__(self, turns, steps):
        self.turns, self.steps = turns, steps

    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = not self.turns.done(self.steps)


def train(model, turns):
    warnings.simplefilter("ignore")
    turns.settings = (
        f"{versions('lightning', 'torch')}, all defaults, {torch.get_num_threads()} threads"
    )
    batches = torch_models.Batches(model)
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=-1,
            default_root_dir=directory,
            callbacks=[TakeTurns(turns, batches.task.steps)],
        )
        trainer.fit(Module(model), batches)
