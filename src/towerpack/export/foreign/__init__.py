"""Models that come from elsewhere: frozen graphs, SavedModels, Caffe."""
