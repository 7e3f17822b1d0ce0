"""What only the bytes can tell: one streaming pass over all weights, and the rules on what it saw.

`scan` reads, `judge` makes findings of it. numpy is needed for the contents; hashing alone does without.
"""
