"""Which drafters a model has: the catalogue, the Hub, what a checkpoint's config.json says."""
