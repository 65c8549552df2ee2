"""From a plan to a result: the stages in a row, and the result as a run folder."""
