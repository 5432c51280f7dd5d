"""Predictors made from the tower function that trained the model.

For one batch, asynchronous, over many devices or processes, or over a whole dataflow. This room
never imports the trainer.
"""

__all__: list[str] = []
