"""Scripts that make what the project and its tests need: tables, skeletons, real models."""
