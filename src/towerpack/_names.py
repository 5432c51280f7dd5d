"""The public names and their homes: what `from towerpack import *` gives.

To publish a name, add it to its room's `__all__` and, in order, to the room's tuple here. A test
compares the two, and says what is missing.
"""

TF_FREE_ROOMS = ("core", "dataflow", "monitor")

ROOMS = (
    *TF_FREE_ROOMS,
    "input_source",
    "tower",
    "models",
    "checkpoint",
    "callbacks",
    "train",
    "predict",
    "export",
    "estimator",
    "compat",
    "cli",
)

# Modules that scripts use by their short name.
MODULES = {
    "dataset": "towerpack.dataflow.dataset",
    "logger": "towerpack.core.logger",
}

NAMES: dict[str, tuple[str, ...]] = {
    "towerpack.core.every": ("Every", "every"),
    "towerpack.dataflow": (
        "BatchData",
        "BatchError",
        "DataFlow",
        "DataFlowTerminated",
        "DataFromArrays",
        "DataFromList",
        "DroppedDatapoint",
        "FakeData",
        "FlowIterator",
        "MapData",
        "ProxyDataFlow",
        "RNGDataFlow",
        "Source",
        "as_flow",
    ),
    "towerpack.monitor": (
        "JSONWriter",
        "MonitorBase",
        "Monitors",
        "RunInfo",
        "ScalarPrinter",
        "TFEventWriter",
    ),
    "towerpack.input_source": (
        "InputSource",
        "QueueInput",
        "SignatureError",
    ),
    "towerpack.tower": (
        "TowerContext",
        "TowerFunc",
        "TowerTensorHandle",
        "TracedTower",
        "VariableStore",
        "add_moving_summary",
        "get_current_tower_context",
        "get_global_step_var",
        "get_op_tensor_name",
    ),
    "towerpack.models": (
        "AvgPooling",
        "Conv2D",
        "Dropout",
        "FullyConnected",
        "GlobalAvgPooling",
        "LinearWrap",
        "MaxPooling",
        "ModelDesc",
        "ModelDescBase",
        "VariableHolder",
        "argscope",
        "batch_flatten",
        "get_arg_scope",
        "layer_register",
    ),
    "towerpack.checkpoint": (
        "LoadError",
        "LoadReport",
        "ModelLoader",
        "SmartInit",
        "get_checkpoint_path",
        "get_model_loader",
        "load_checkpoint_vars",
        "save_checkpoint",
    ),
    "towerpack.train": (
        "DEFAULT_CALLBACKS",
        "DEFAULT_MONITORS",
        "SimpleTrainer",
        "TrainConfig",
        "Trainer",
        "launch_train_with_config",
    ),
    "towerpack.callbacks": (
        "Callback",
        "Callbacks",
        "ClassificationError",
        "InferenceRunner",
        "Inferencer",
        "ModelSaver",
        "MovingAverageSummary",
        "ProgressBar",
        "ScalarStats",
        "StopTraining",
    ),
    "towerpack.predict": (
        "OfflinePredictor",
        "PredictConfig",
    ),
    "towerpack.export": (
        "ExportError",
        "ModelExporter",
    ),
}
