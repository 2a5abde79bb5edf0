"""The runtime: what runs agents and keeps their promises, on top of the store. Nothing here knows SQL."""
