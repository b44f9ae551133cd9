"""Waits of ranks: for whom, and why the others arrive late.

collectives       each collective once: arrivals, waits, straggler
wait_states       waits by their names in the literature
rank_waits        wait states of each rank
activity          whether a rank waits, transfers or works, over time
balance           load balance of each step
skew              arrival skew of each group
start_skew        collectives with the largest skew
stragglers        ranks that delay the others
lateness          reasons why they arrive late
time_before       what ranks do before they arrive
"""
