"""Radio: simulated WiFi transmitters, real channel-state fingerprints, and users' own recordings.

`ofdm` makes 802.11a/g frames, `impairments` is what devices and the air do to them, `receiver` finds and
equalises them, `simulate` puts these together as rf-50-sim. `recordings` reads and writes SigMF and raw I/Q,
`csi` is wifi-csi-30, `voting` goes from slices to transmissions.
"""

from cdknet.radio.csi import load_wifi_csi_30
from cdknet.radio.recordings import open_recording, write_sigmf
from cdknet.radio.simulate import Simulation, load_rf50_sim
from cdknet.radio.voting import vote

__all__ = [
    "Simulation",
    "load_rf50_sim",
    "load_wifi_csi_30",
    "open_recording",
    "vote",
    "write_sigmf",
]
