"""Readers and writers of files. Each reader is a flow, with random access if the format allows it.

A damaged record raises an error that names the file and the record (`CorruptRecord`). With
`on_error='skip'` it is left out, logged and counted. Nothing read from a file is ever executed.

The public names are exported by `towerpack.dataflow`. A new format is a file here with its reader,
its writer and a `Format`, which is registered in `stored.FORMATS`.
"""
