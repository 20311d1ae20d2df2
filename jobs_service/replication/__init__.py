"""Replication between two databases that speak CouchDB's HTTP protocol, as a job."""
