"""Ratios against baselines, measured side by side in one run: `python -m benchmarks --help`."""
