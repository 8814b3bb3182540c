"""The way to the store: one server, the primary behind sentinels, a cluster, or an imitation inside this process.

```
Store      what a call is: its deadline, made again while servers are in transition
├── Servers    which server it goes to: Embedded, Single, Sentinels, Cluster
│   └── Lane       one server: calls that come together share a pipeline
├── failures   what an error means for the call that met it
└── Lineage    whether the servers are still the ones they were
```
"""

from coordinator.store.address import check_url
from coordinator.store.clock import StoreClock
from coordinator.store.lineage import Lineage
from coordinator.store.store import Ready, Store

__all__ = ["Lineage", "Ready", "Store", "StoreClock", "check_url"]
