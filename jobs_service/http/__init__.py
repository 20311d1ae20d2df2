"""A service over HTTP, for programs in any language and for browsers."""
