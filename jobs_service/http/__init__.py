"""A service over HTTP: what programs in any language and browsers reach."""
