"""The explorer: a person looks at what was found, corrects it, names it, and teaches it back.

`folder` opens a run, `review` is what the person changed, `cards` says what a class is like, `samples` draws,
`session` puts the four together, `server` answers a browser, `report` writes one page, `refine` trains again
(`refining` is that as a process of its own, for the page).
Only `refine` needs torch, and only `server` needs the extra [web].
"""
