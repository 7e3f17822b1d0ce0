"""Other tools behind `mlload quantize`: the same front, data, carried files, check and report."""
