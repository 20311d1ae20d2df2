"""What runs for every type while a service is open: who notices lost jobs, and who tells subscribers."""
