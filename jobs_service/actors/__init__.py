"""The actors that run while a service is open: they find lost, due and expired jobs, and send events to subscribers."""
