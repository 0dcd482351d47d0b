"""spectune: find the best speculative decoding method and N for a model, a workload and a load."""

__version__ = "0.1.0"
