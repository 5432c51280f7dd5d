"""What a model is written with: `ModelDesc`, `argscope`, `LinearWrap`, layers, regularizers.

Layers are thin functions over TensorFlow ops, so that Keras layers or plain TensorFlow work beside
them in the same tower.
"""

__all__: list[str] = []
