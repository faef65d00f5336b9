"""The fault benchmark: trainings with one known fault each, healthy ones, and what the doctor says of them.

::

    make faults                                              # everything, and the table
    python -m benchmarks.faults run --half tuning --jobs 2   # one half of the runs
    python -m benchmarks.faults report --half tuning         # what is said of these
"""
