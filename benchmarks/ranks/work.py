"""What is added up: the size of the gradients of ResNet-50, about."""

ELEMENTS = 25_000_000  # float32
