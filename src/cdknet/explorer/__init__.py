"""The explorer: a person looks at the discovered classes, corrects and names them, and refines the model.

`folder` opens a run, `review` is what the person changed and `journal` its file, `cards` describes a class,
`samples` draws samples, `session` combines these, `server` answers a browser behind `auth`, `report` writes a
page to read, and `refining` starts `cdknet.fit.refine` as a process. Nothing here imports torch; `server`
needs the extra [web].
"""
