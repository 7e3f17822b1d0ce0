"""`mlload quantize`: what is to be quantized and how, written as a folder that engines load.

recipe     what was asked for, as schemes
targets    which modules that means, and why others are left alone
config     how the output's config says so
stream     the weights, tensor by tensor, into an output that appears when it is complete
forecast   memory, disk and time before anything is written
check      planned against written, after everything is
"""
