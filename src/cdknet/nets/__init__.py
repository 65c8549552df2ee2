"""Networks: weights, no training."""
