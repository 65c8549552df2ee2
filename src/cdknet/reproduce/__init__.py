"""The paper's experiments: every cell of every table and figure by one command, `cdknet reproduce`.

`plan` says which cells there are and how each is set, `runner` fills them (one JSON line a cell, in
`results/`), `page` and `figures` turn the lines into docs/results.md and its pictures, `paper` holds the
numbers of the paper. Importing `plan` or `paper` is cheap.
"""
