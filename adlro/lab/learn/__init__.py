"""Training of policies: environments on the simulator. Only this package uses Gymnasium (and, for networks, torch)."""

import os

# Read by torch when it is imported. Its threads wait for one another many times a step, by default in busy loops: where
# other work uses the cores too, as beside `adlro learn`, a training then takes many times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
