"""A small server that speaks CouchDB's HTTP protocol, in memory, with every oddity of real servers to switch on.

It shares no code with what it tests: uploads are read by aiohttp's reader, answers are written by hand.
"""

from tests.replication.server.oddities import Fault, Oddities
from tests.replication.server.server import Server

__all__ = ["Fault", "Oddities", "Server"]
