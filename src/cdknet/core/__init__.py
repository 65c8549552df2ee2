"""The mathematics: tensors in, tensors out. No options, no files, no training."""
