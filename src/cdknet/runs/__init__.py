"""Run folders: the format, checkpoints, summaries, figures and scores. No torch here."""
