"""What is sbatch given for a job: `submit` reads it and becomes sbatch, `answer` decides, `answers`
remembers.
"""
