"""Recorded events, from the request of a call to the batch in which it is written.

A `Request` holds the arguments of a call, a `Call` its life from issue to completion, a `Location`
its place in the program. `Numbering` makes numbers and names relative to a recording, and
`Buffer` holds events until they are written.
"""
