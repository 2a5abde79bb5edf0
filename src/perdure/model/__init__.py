"""The nouns, one file each: frozen rows as the store returns them. No behaviour beyond reading a row."""
