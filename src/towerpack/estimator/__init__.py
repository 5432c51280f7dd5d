"""The Estimator interface of TensorFlow 1: a `model_fn`, an `input_fn`, and a model directory."""

__all__: list[str] = []
