"""The API's bodies: what a request and an answer look like. `review` checks what an action means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """The body of a request: exactly the fields below, of exactly their types."""

    model_config = ConfigDict(extra="forbid", strict=True)


Number = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Rename(Body):
    kind: Literal["rename"]
    class_: Number = Field(alias="class")
    name: str


class Merge(Body):
    kind: Literal["merge"]
    classes: list[Number]
    into: Number


class Split(Body):
    kind: Literal["split"]
    class_: Number = Field(alias="class")
    k: Number


class Move(Body):
    kind: Literal["move"]
    samples: list[Number]
    to: Number | None
    name: str | None = None


class MarkOld(Body):
    kind: Literal["mark_old"]
    class_: Number = Field(alias="class")
    old: Number


class Old(Body):
    kind: Literal["old"]
    samples: list[Number] | None = None
    class_: Number | None = Field(default=None, alias="class")


class Reject(Body):
    kind: Literal["reject"]
    samples: list[Number] | None = None
    class_: Number | None = Field(default=None, alias="class")


class Note(Body):
    kind: Literal["note"]
    class_: Number = Field(alias="class")
    text: str


class Dismiss(Body):
    kind: Literal["dismiss"]
    class_: Number = Field(alias="class")
    hint: Literal["split", "merge"]
    with_: Number | None = Field(default=None, alias="with")


Action = Annotated[
    Rename | Merge | Split | Move | MarkOld | Old | Reject | Note | Dismiss, Field(discriminator="kind")
]


class ActionBody(Body):
    revision: Number
    action: Action


class RevisionBody(Body):
    revision: Number


class RefineBody(Body):
    out: str


class Changed(BaseModel):
    samples: int
    classes: list[int]


class Answer(BaseModel):
    """What an action, an undo or a redo did."""

    revision: int
    summary: str
    changed: Changed


class Problem(BaseModel):
    error: str


class Conflict(Problem):
    revision: int
