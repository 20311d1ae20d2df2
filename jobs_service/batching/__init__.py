"""What runs for every type while a service is open: who notices lost jobs, and who tells subscribers.

Floor: above the layer and the supervision, below the service.
"""
