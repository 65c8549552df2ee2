"""Radio: simulated WiFi transmitters, real channel-state fingerprints, and users' own recordings.

`ofdm` builds 802.11a/g frames, `impairments` models the hardware and the channel, `receiver` finds and
equalises frames, and `simulate` combines these into rf-50-sim. `recordings` reads SigMF and raw I/Q files and
writes SigMF, `csi` reads wifi-csi-30, `voting` combines slices into transmissions.
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
