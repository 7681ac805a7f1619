"""Values of tensors on a device that has no contents.

known_values  keeps those that came from the host, and computes on (Note [Known values])
table         the table of them; `lazy` is what large ones are made from
rules         what operators do to it; `factories` what makes tensors, `shapes` what has a shape that follows from
values, `plausible` makes up the rest
assumed       where what was made up may decide something
reads         where a model reads values that are not known
"""
