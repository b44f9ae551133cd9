"""A run as a graph of work, replayed as it was or with changes.

    work_graph(run) ─> WorkGraph ─> replayed(graph) ─> Replay ─> run_of(replay)      a run again
                          │  ▲                            │
                   changes│  │what they leave             └─> critical path, slack
                          ▼  │
                       changed(...)

`graph` says what a graph consists of; `host`, `joins` and `devices` make its points and edges;
`engine` walks it.
"""
