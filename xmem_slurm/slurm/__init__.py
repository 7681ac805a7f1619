"""What a job asks of Slurm: text in, text out. Only `client` touches the world."""
