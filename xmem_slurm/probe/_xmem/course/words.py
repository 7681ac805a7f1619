"""What names of functions, and a script's own words, say of GPU memory."""

import re

HARMLESS = re.compile(
    r"print|debug|info|warn(ing)?|log(_\w+|ger)?|write(_\w+)?|add_(scalars?|text|histogram|images?|argument)|set_postfix(_str)?"
    r"|set_description|append"
    r"|format|join|item|tolist|time|perf_counter|flush|len|str|int|float|round|min|max|sum|range|enumerate|abs|dict|list"
    r"|close|strftime|now|seed|set_epoch|exit|finish|isfinite|isnan|getenv|get_last_lr|memory_\w+|max_memory_\w+"
    r"|reset_\w+|synchronize|elapsed_time|makedirs|mkdir|open|isinstance|items|sorted|exists|barrier|is_main_process|get_rank|destroy_process_group|zero_grad"
)
"""Names of functions whose call says nothing about GPU memory that the loop has not shown."""
SAVING = re.compile(r"save|save_\w+|state_dict|dump|copyfile|symlink|unlink|remove|rename|replace|cpu")
"""Those of one process that writes a checkpoint of its own: nothing is gathered on the GPU."""
EVALUATION = re.compile(r"\.eval\(|no_grad|inference_mode|eval|valid|test|generate|sample", re.IGNORECASE)
CHECKPOINT = re.compile(r"save|checkpoint|state_dict", re.IGNORECASE)
