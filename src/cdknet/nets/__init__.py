"""Networks: layers and weights. No training."""
