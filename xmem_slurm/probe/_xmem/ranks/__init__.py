"""One process as one rank of many.

rank         what would wait for the other ranks goes on without them
launch       what starts ranks from within Python
peers        what goes between ranks, and how it gets there (`mail`)
collectives  what is known of the outcome of a collective
checkpoints  what a checkpoint gathers
"""
