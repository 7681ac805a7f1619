"""This process.

stand_ins    maps the stand-in CUDA libraries, before torch looks for the real ones
files        notes which files are opened, so that an estimate can be cached
network      notes what was asked for over the network, which is not there
ends         makes every way out of the process lead past the recorder
limits       whether what holds a job to its share of a GPU would hold it
budget       how much of its time the dry run has left
clock        stands still while others have the CPU: that is no time of the run
alive        which objects of a class are alive
description  what both engines write of the process, and how
"""
