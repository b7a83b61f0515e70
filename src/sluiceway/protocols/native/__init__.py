"""Sluiceway's own protocol: every token an event of its own, and streams that can be asked about and cancelled."""
