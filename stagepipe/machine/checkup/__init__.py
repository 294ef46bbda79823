"""The check-up of `stagepipe doctor`: does this machine have what a run needs? Tries it out; leaves nothing behind.

Runs in the process of the command.

examination      `examine_machine`: all checks, in order
health_check     `HealthCheck`: what one check found
kernel_checks    what the kernel must be able to do
resource_checks  CPUs, memory, descriptors, tasks, and the limits of the cgroup
software_checks  Python, the required packages, torch and CUDA, folders
"""

from stagepipe.machine.checkup.examination import examine_machine
from stagepipe.machine.checkup.health_check import HealthCheck, HealthStatus

__all__ = ["HealthCheck", "HealthStatus", "examine_machine"]
