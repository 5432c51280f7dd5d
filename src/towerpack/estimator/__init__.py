"""Other interfaces to the same trainer: `Estimator(model_fn)` and scikit-learn estimators.

Empty so far. `Estimator` will train, evaluate and predict from a `model_fn` and an `input_fn`; the
classifier and regressor will pass the checks that scikit-learn makes of its own.
"""

__all__: list[str] = []
