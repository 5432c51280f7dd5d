"""Classifiers and regressors with the interface of scikit-learn."""

__all__: list[str] = []
