"""Facts derived for each call and step, and the measures that tables share.

arrivals          wait and transfer time of each call, and the rank that arrived last
device            calls on a device, and the time in which it computes
intervals         intervals in which ranks were blocked or communicated
covered           time that intervals cover in any window
covered_time      time that intervals cover within other intervals
step_times        steps by the clock of the device or of the program
steady_steps      steps on which shares and counts per step are based
unrecorded        time that was not recorded on purpose
census            how many calls have a known value
selections        calls that the census counts for rules
measures          the measures themselves
"""
