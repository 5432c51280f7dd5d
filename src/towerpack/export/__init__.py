"""A trained tower for others to run: SavedModel, frozen graph, LiteRT, ONNX.

Each exporter loads again what it wrote and compares its numbers with the predictor; an export that
was not checked is not reported as good.
"""

__all__: list[str] = []
