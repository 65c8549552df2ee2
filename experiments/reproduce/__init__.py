"""The paper's experiments: every cell of every table and figure by one command, `cdknet reproduce`.

- `plan`: which cells there are, and the options of each.
- `runner`: fits the cells; one JSON line per cell, in `results/`.
- `claims`, `studies`, `page`, `figures`: turn these lines into docs/results.md and its figures.
- `pages/`: the prose of that page, as Markdown templates.
- `paper`: the numbers printed in the paper.

Importing `plan` or `paper` is cheap: neither needs torch.
"""
