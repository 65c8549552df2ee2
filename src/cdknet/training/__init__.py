"""What all stages share: the problem, the context of a fit, and epochs that can be resumed."""
