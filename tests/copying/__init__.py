"""Copies of all jobs from one store into another."""
