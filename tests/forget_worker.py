"""Runs of claw forget that are killed in the middle, each in a process of its own.

    python forget_worker.py < requests.json

A request is [data, where, number]: the process dies at the number-th call that changes the disk.
One line of JSON per request says how it ended. Nothing of deltalake is used before a fork, because
its threads do not survive one.
"""

import json
import os
import signal
import sys

from clawcli.manage.forget import ForgetConfig, forget


def die_at(number):
    count = 0

    def counted(real):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in ("fsync", "unlink", "rename", "replace", "rmdir", "link"):
        setattr(os, name, counted(getattr(os, name)))


def main():
    for data, where, number in json.load(sys.stdin):
        if not (pid := os.fork()):
            die_at(number)
            forget(ForgetConfig(input=data, where=where))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{json.dumps(code)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
