/* SPDX-License-Identifier: Apache-2.0 */
/* deferred_replay [--immediate] LAG_US OPERATION_US EXPRESSION TRACE: plays a trace through a stack
 * whose freed blocks wait for their fences, on a fake device (fake_device.h).  Traces have no
 * times: the program takes so long for each line, and the GPU is so far behind it at most.
 *
 * Prints the most that was live and taken from the driver at once, how often an allocation waited,
 * and by which share the run got longer for it: the GPU idled, or nothing was to be waited for. */
#include "fake_device.h"
#include "resource/report.h"
#include "trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t value(struct rs_mr *mr, const char *name)
{
    struct rs_report report = {.count = 0};

    rs_mr_report(mr, &report);
    return rs_report_value(&report, "reuse", name, 0);
}

static bool play(const struct trace *trace, struct rs_mr *mr, uint64_t operation_ns)
{
    struct rs_allocation *blocks = calloc(trace->block_count, sizeof(*blocks));
    bool good = blocks;

    for (size_t i = 0; i < trace->event_count && good; i++) {
        const struct trace_event *event = &trace->events[i];
        fake_device_operate(operation_ns);
        good = (event->bytes ? rs_mr_allocate(mr, event->bytes, NULL, &blocks[event->block])
                             : rs_mr_deallocate(mr, &blocks[event->block], NULL)) == CUDA_SUCCESS;
    }
    free(blocks);
    return good && rs_mr_check(mr);
}

int main(int argc, char **argv)
{
    bool immediate = argc > 1 && strcmp(argv[1], "--immediate") == 0;
    char **arguments = argv + 1 + immediate;
    struct trace trace = {0};
    uint64_t lag_ns, operation_ns;
    struct rs_mr *mr;

    if (argc != 5 + immediate) {
        fprintf(stderr,
                "usage: deferred_replay [--immediate] LAG_US OPERATION_US EXPRESSION TRACE\n");
        return 1;
    }
    lag_ns = strtoull(arguments[0], NULL, 10) * 1000;
    operation_ns = strtoull(arguments[1], NULL, 10) * 1000;
    fake_device_install(lag_ns, (size_t)256 << 30);
    mr = trace_read(&trace, arguments[3]) ? fake_device_stack(arguments[2], !immediate) : NULL;
    if (!mr || !play(&trace, mr, operation_ns))
        return 1;
    printf("live %zu reserved %zu ratio %.4f waits %llu longer %.5f fences %llu looks %llu "
           "allocations %llu frees %llu\n",
           trace.peak_live_bytes, fake_device_peak_bytes(),
           (double)fake_device_peak_bytes() / (double)trace.peak_live_bytes,
           (unsigned long long)value(mr, "waits"),
           lag_ns ? (double)fake_device.idle_ns / (double)fake_device.busy_ns
                  : (double)value(mr, "waited") / (double)(operation_ns * trace.event_count),
           (unsigned long long)fake_device.fences, (unsigned long long)fake_device.looks,
           (unsigned long long)fake_device.allocations, (unsigned long long)fake_device.frees);
    mr->ops.destroy(mr, false);
    trace_free(&trace);
    return 0;
}
