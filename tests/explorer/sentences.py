"""Sentences of five classes, for runs of texts; some of them try to run as a script."""

from __future__ import annotations

HOSTILE = "<img src=x onerror=alert(1)><script>alert('text')</script></script><b>bold</b> \u2028 & \"quotes\""

PATTERNS = (
    (
        "I would like my money back for order {}",
        "please refund purchase {} to my card",
        "a refund of bill {}",
    ),
    ("I cannot sign in to account {}", "the password for user {} is rejected", "locked out of my login {}"),
    ("how do I change the address of customer {}", "new address for contract {}", "we moved: address {}"),
    ("where is my parcel {}", "parcel {} has not arrived yet", "the courier lost parcel {}"),
    ("the battery of phone {} drains overnight", "phone {} does not charge", "battery {} gets hot"),
)


def sentences(n: int) -> list[str]:
    """The sentence of each sample of `make_run`, whose classes take turns."""
    made = [PATTERNS[i % 5][i // 5 % 3].format(i) for i in range(n)]
    for i in range(3, n, 25):  # of the first new class
        made[i] = f"{HOSTILE} parcel {i}"
    if n > 8:
        made[8] = "where is my parcel? " + "It was sent a week ago and nothing has come. " * 40
    return made
