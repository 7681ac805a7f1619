"""How far a run goes, and what of the script was seen: `course` decides, by what the other modules
tell it.
"""
