"""Events on the host that can make a rank do something other than the rest.

    compilations      frames that Dynamo compiles, or compiles again, with the guard that failed
    data_loading      ends of iterators of data loaders, and long waits for their batches
    exceptions        exceptions that pass modules and collectives, or that the program catches
    endings           exceptions that nothing catches, which end the rank or a thread
    store_calls       calls that wait for other ranks through the store, such as `new_group`
    stuck             stacks of all ranks while some rank waits
    pauses            long garbage collections, and times at which no thread of Python ran

`observer` composes them. They cost nothing while nothing of the sort happens.
"""
