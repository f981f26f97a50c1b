# SPDX-License-Identifier: Apache-2.0
"""Under a limit an invalid call gets the driver's error, by every way to memory."""
import support
from support import run

LIMITED = ({}, {"RMM_POOL_SIZE": "0"}, {"RMM_POOL_SIZE": "0", "RMM_MANAGED_POOL_SIZE": "0", "RMM_PINNED_POOL_SIZE": "0",
                                      "RMM_HOOKS": "all"}, {"RMM_RESOURCE": "virtual"}, {"RMM_ASYNC": "1"})


class InvalidCalls(support.Test):
    def play(self, settings, **how):
        result = run([support.program("invalid_calls")], settings, **how)
        self.assertEqual(result.status, 0, result)
        return result.stdout

    def test_the_drivers_error(self):
        plain = self.play({}, preload=[])
        self.assertNotIn(": 2\n", plain)
        for settings in LIMITED:
            with self.subTest(settings):
                self.assertEqual(self.play(dict(settings, RMM_LIMIT="64MiB")), plain)


if __name__ == "__main__":
    support.main()
