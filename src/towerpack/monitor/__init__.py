"""Where the numbers of a run go: TensorBoard events, JSON lines, the console, other trackers.

One small protocol, `MonitorBase`, stands between the trainer and every place that wants scalars or
images. Free of TensorFlow: event files are written here, byte for byte what TensorBoard reads.
"""

__all__: list[str] = []
