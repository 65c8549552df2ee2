"""What every training shares: the problem, the context of a fit, epochs that survive an interruption."""
