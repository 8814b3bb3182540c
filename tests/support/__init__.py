"""What the tests share: real stores, a stub model server, faults on the wire, replicas, and looks into the store.

Nothing here imports the product: a replica is started as a command and judged from outside.
"""

from __future__ import annotations

STORES = ("real", "cluster", "embedded")
"""The back ends every script test runs on: a single server, a one-node cluster, the in-process imitation."""
