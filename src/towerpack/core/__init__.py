"""What every room stands on: datapoint trees, seeds, intervals, codec, processes, files, logging.

Small, free of TensorFlow, and without state at import: no thread, handler, process or
environment variable is touched until a function here is called.
"""
