"""Attribution of a call to a phase, a module call and a line of the user's code.

`locator` combines the parts: `modules` tracks module calls, `stack_frames` walks the Python stack,
`backward_passes` finds the code that called backward, and `library_frames`, `ddp` and `pipelines`
read what libraries communicate on their own. `pipeline_stages` observes what pipeline stages
compute.
"""
