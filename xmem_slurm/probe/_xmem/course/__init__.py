"""How far a run goes, and what of the script was seen.

course       decides; the classes below tell it what it knows
ahead        reads from the source of the functions that are running what is to come
loops        how far a loop is, and what its variables will be
expressions  computes conditions and sizes for iterations to come
source       the source of a function, and what is the script's own
batches      what a data loader gives
"""
