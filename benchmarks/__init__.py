"""How fast perdure is, beside what the same disk could do at best, in one session.

    python -m benchmarks [--quick] [--disk model|real] [--rounds 3] [--out out/bench.json]

    session.py    runs every cell in a process of its own, round by round, and takes medians
    cell.py       the door to one cell:  python -m benchmarks.cell NAME JSON
    limit.py      the limit: a group-commit writer that only stores rows
    steps.py      durable steps a second through the public API
    tasks.py      whole tasks of one step, claimed here and by another process
    recovery.py   tasks cut off by kill -9, taken up again
    disk.py       the disk: a model with syncs of one length (syncshim.c), or the real one
    meter.py      rates, latencies, CPU, syncs and bytes; and the payload of 2,048 bytes
    report.py     the table, the goals, the comparison with recorded.json

A shared machine's disk and processor are no constants: a rate may halve within minutes. So nothing here is judged
by a rate alone: rates are compared with the limit measured beside them; syncs, bytes and CPU for each step are
comparable between machines and days. Nothing is asserted, and no test looks at a time.
"""
