# SPDX-License-Identifier: Apache-2.0
"""Contexts that come, go and work side by side: no memory of a context that has ended is handed out, and
no call waits for work that another one does."""
import support
from support import run

POOL = {"RMM_POOL_SIZE": "64MiB"}
STACKS = [POOL, {"RMM_RESOURCE": "cuda"}, {"RMM_RESOURCE": "virtual"}, {"RMM_ASYNC": "1"},
          {"RMM_ARENA_SIZE": "64MiB"}, {"RMM_STATISTICS": "text:/dev/null"}]
RACE = {"HOSTCUDA_RACE": "1"}


class Contexts(support.Test):
    def scene(self, name, settings, program="contexts", **more):
        with self.subTest("%s under %s, %s" % (name, settings, more)):
            result = run([support.program(program), *name.split()], settings, more=more)
            self.assertEqual((result.status, result.stdout, result.stderr), (0, "ok\n", ""), result)

    def test_plain(self):
        """The scenes themselves, on the driver alone."""
        for program, name in [("contexts", "green_beside_a_kernel"), ("contexts", "late_release"),
                              ("contexts", "late_reset"), ("contexts", "late_destroy"),
                              ("context_ends", "addresses_reused"), ("context_ends", "addresses_reused_by_driver"),
                              ("context_ends", "reference_left"), ("context_ends", "random_ends")]:
            result = run([support.program(program), name], preload=[])
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)

    def test_a_kernel_does_not_stop_green_contexts(self):
        for settings in STACKS:
            self.scene("green_beside_a_kernel", settings)
            self.scene("green_churn", settings)
        self.scene("green_pushed", {"RMM_POOL_SIZE_1": "64MiB"}, HOSTCUDA_DEVICES="2")

    def test_a_context_that_ends_is_not_served_again(self):
        for name in ("late_release", "looked_up_meanwhile", "retained_meanwhile", "learnt_later", "late_look",
                     "late_reset", "late_destroy", "released_by_the_library"):
            for settings in (POOL, {"RMM_RESOURCE": "virtual"}):
                self.scene(name, settings)
        for name in ("late_release", "retained_meanwhile"):  # without cuCtxGetId
            self.scene(name, POOL, HOSTCUDA_DRIVER_VERSION="11080")

    def test_addresses_of_a_context_that_ends(self):
        """The driver has them back before its call returns, and gives them to others."""
        for settings in ({"RMM_POOL_SIZE": "0"}, {"RMM_RESOURCE": "cuda"}, {"RMM_RESOURCE": "virtual"},
                         {"RMM_ASYNC": "1"}):
            for name in ("addresses_reused", "addresses_reused_by_driver", "end_that_fails", "reference_left"):
                with self.subTest("%s under %s" % (name, settings)):
                    result = run([support.program("context_ends"), name], settings)
                    self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)
        for settings in ({"RMM_POOL_SIZE": "0"}, {"RMM_RESOURCE": "virtual"}, {"RMM_ASYNC": "1"}):
            self.scene("handle_reused", settings, program="context_ends", HOSTCUDA_DEVICES="2")
        for name in ("addresses_reused", "end_that_fails", "reference_left"):  # without cuCtxGetId
            self.scene(name, POOL, program="context_ends", HOSTCUDA_DRIVER_VERSION="11080")

    def test_contexts_that_come_and_go_at_random(self):
        late = "cuCtxDestroy,cuDevicePrimaryCtxRelease,cuDevicePrimaryCtxReset:after_us=300:percent=60:seed=%d"
        for seed in range(1, 4):
            for settings, driver in (({"RMM_POOL_SIZE": "0", "RMM_PINNED_POOL_SIZE": "0"}, "13000"),
                                     ({"RMM_RESOURCE": "cuda"}, "13000"), ({"RMM_RESOURCE": "virtual"}, "13000"),
                                     ({"RMM_ASYNC": "1"}, "12040"),
                                     ({"RMM_POOL_SIZE": "0", "RMM_LIMIT": "2GiB"}, "11080")):
                self.scene("random_ends %d" % seed, settings, program="context_ends", HOSTCUDA_FAULT=late % seed,
                           HOSTCUDA_DRIVER_VERSION=driver)

    def test_a_context_that_comes_and_goes_in_two_threads(self):
        for seed in (1, 2):
            late = "cuDevicePrimaryCtxGetState:after_us=300:percent=50:seed=%d" % seed
            for settings in (POOL, {"RMM_ASYNC": "1"}, {"RMM_LIMIT": "64MiB", "RMM_POOL_MAX_SIZE": "48MiB"}):
                self.scene("churn", settings, HOSTCUDA_FAULT=late, **RACE)

    def test_as_many_contexts_as_the_device_has_room_for(self):
        """Each of 600 holds 2 MiB: all are counted, so the last ones are refused."""
        program = [support.program("contexts"), "many"]
        few = {"HOSTCUDA_CONTEXT_MEMORY": "64KiB"}
        for settings in ({"RMM_RESOURCE": "cuda"}, {}):
            for limit, refused in (("", 0), ("1160MiB", 20)):
                with self.subTest("%s, limit '%s'" % (settings, limit)):
                    result = run(program, dict(settings, **({"RMM_LIMIT": limit} if limit else {})), more=few)
                    self.assertEqual((result.status, result.stdout, result.stderr),
                                     (0, "%d refused\nok\n" % refused, ""), result)

    def test_a_wait_beside_anothers_work(self):
        self.scene("wait_beside_work", {"RMM_RESOURCE": "async(release_threshold=0)"})

    def test_a_free_on_another_contexts_stream_does_not_wait(self):
        for name in ("far_device", "far_context"):
            for settings in (POOL, {"RMM_POOL_MAX_SIZE": "2MiB"}, {"RMM_RESOURCE": "cuda"}):
                self.scene(name, settings, HOSTCUDA_DEVICES="2", **RACE)
        for settings in (POOL, {"RMM_POOL_MAX_SIZE": "2MiB"}):
            self.scene("far_captured", settings, **RACE)
            self.scene("far_old", settings, HOSTCUDA_DRIVER_VERSION="12040", **RACE)


if __name__ == "__main__":
    support.main()
