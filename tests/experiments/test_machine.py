from __future__ import annotations

import os
import platform

from harness.experiments.machine import read_machine

CPUINFO = "processor\t: 0\nmodel name\t: Imaginary CPU @ 3.00GHz\n\nprocessor\t: 1\nmodel name\t: Imaginary CPU @ 3.00GHz\n"


def test_the_fingerprint_is_cpu_and_cores(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    machine = read_machine(file)
    assert machine.fingerprint == f"Imaginary CPU @ 3.00GHz, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    assert machine.kernel == platform.release()
    assert machine.memory_gib > 0.1


def test_where_the_model_is_not_named_the_architecture_stands_in(tmp_path):
    assert read_machine(tmp_path / "absent").cpu == platform.machine()
