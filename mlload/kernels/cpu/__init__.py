"""What runs a quantized linear on a CPU: torch's low-bit operators where they are fast, else a reference."""
