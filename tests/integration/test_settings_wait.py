# SPDX-License-Identifier: Apache-2.0
"""Who comes while another thread reads the settings sleeps: a real-time thread would keep the processor from it."""
import support
from support import run


class SettingsWait(support.Test):
    def test_naps(self):
        result = run([support.program("settings_wait")], {"RMM_POOL_SIZE": "0"})
        self.assertEqual((result.status, result.stdout), (0, "naps\n"), result)

    def test_plain(self):
        result = run([support.program("settings_wait")], preload=[])
        self.assertEqual((result.status, result.stdout), (0, "does not wait\n"), result)


if __name__ == "__main__":
    support.main()
