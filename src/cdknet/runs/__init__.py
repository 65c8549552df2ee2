"""Run folders: writing, reading, summing up. No torch here."""
