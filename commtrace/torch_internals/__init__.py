"""Private names of torch that the recorder uses, by subject; nothing else imports any.

`tests/torch_contract` asserts that each name matches its description here. A new release of torch
that changes any of them fails there, by name. Private attributes of torch's objects, such as
`module._call_impl`, are used where they are needed, and asserted there too.
"""
