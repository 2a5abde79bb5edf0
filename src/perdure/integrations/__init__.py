"""Adapters that record what other frameworks do, one file each. They import their framework; nothing imports them."""
