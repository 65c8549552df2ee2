"""The method, CD-KNet-Exp, in the order of the paper (section V):

1. `pretrain`: learn the old classes with a softmax head.
2. `discover`: turn the features so that old and new classes fall apart, by turns of network steps and
   U steps (Algorithm 1), then cluster the unlabelled samples. The clusters are pseudo-labels. CD-KNet+
   (`plus`) has other terms; both are climbed by `objective`.
3. `expand`: grow the last layers and fine-tune on pseudo-labels and some of the old samples.

Each stage is one function of a network and a `Problem`. It leaves the network it is given untouched and
returns a result that holds a new one. Each can be interrupted and taken up again: see `loop`.
"""

from cdknet.stages.discover import discover
from cdknet.stages.expand import Expansion, expand
from cdknet.stages.loop import Problem
from cdknet.stages.objective import Discovery
from cdknet.stages.pretrain import Pretraining, pretrain

__all__ = ["Discovery", "Expansion", "Pretraining", "Problem", "discover", "expand", "pretrain"]
