#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports of the library for functions that the driver does not have.  A program that the dynamic linker has bound to one
gets an error, as from a driver that knows no such function."""
import support
from support import run

NO_DEVICE, NOT_FOUND = 100, 500
SETTINGS = ({}, {"RMM_RESOURCE": "pool(cuda)"}, {"RMM_RESOURCE": "pool(cuda)", "RMM_LIMIT": "1GiB"})


class Lacking(support.Test):
    def answers(self, expected, arguments=(), **how):
        for settings in SETTINGS:
            result = run([support.program("lacking"), *arguments], settings, **how)
            self.assertEqual(result.status, 0, result)
            lines = result.stdout.splitlines()
            self.assertGreater(len(lines), 100)
            for line in lines:
                with self.subTest(line, settings=settings):
                    self.assertEqual(line.split()[1:], [str(expected)])

    def test_a_driver_without_the_function(self):
        self.answers(NOT_FOUND, ["each"])

    def test_no_driver(self):
        self.only_without_a_driver()
        self.answers(NO_DEVICE, driver=False)


if __name__ == "__main__":
    support.main()
