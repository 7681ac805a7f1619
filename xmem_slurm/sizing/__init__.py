"""How much GPU memory does a job need, how sure is that, and which of the site's GPUs is it to
have?
"""
