"""What is simulated and checked in the deterministic world of `jobs_service.testing`."""
