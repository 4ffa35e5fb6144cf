"""The jobs of the pipeline, one file each: a pure DataFrame function, and `run`, which reads, applies and writes."""
