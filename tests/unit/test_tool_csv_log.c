/* SPDX-License-Identifier: Apache-2.0 */
/* Event logs in RMM's CSV format are read as recordings are. */
#include "unit.h"

#include "folder.h"
#include "tool/recording.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

#define HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

enum { MS = 1000000, SECOND = 1000 * MS };

static struct tool_recording *recording;
static char reason[TOOL_REASON_BYTES];

static int close_recording(void **state)
{
    (void)state;
    tool_recording_close(recording);
    recording = NULL;
    return 0;
}

FIXTURE(NULL, close_recording);

static bool read_bytes(const char *bytes, size_t length)
{
    FILE *file = fopen("log.csv", "w");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    reason[0] = '\0';
    tool_recording_close(recording);
    recording = tool_recording_open("./log.csv", reason);
    return recording;
}

static const struct tool_recording_facts *facts_of(const char *text)
{
    assert_true(read_bytes(text, strlen(text)));
    return tool_recording_facts(recording);
}

static void assert_event(enum rs_recording_event_kind kind, uint64_t time_ns, uint64_t address,
                         uint64_t size_bytes, uint64_t stream)
{
    struct tool_recording_event event;

    assert_true(tool_recording_next(recording, &event));
    assert_int_equal(event.kind, kind);
    assert_int_equal(event.time_ns, time_ns);
    assert_int_equal(event.address, address);
    assert_int_equal(event.size_bytes, size_bytes);
    assert_int_equal(event.stream, stream);
    assert_int_equal(event.device, 0);
    assert_int_equal(event.memory, RS_RECORDING_DEVICE);
    assert_int_equal(event.site, 0);
    assert_string_equal(event.name, "");
}

static void assert_no_more(void)
{
    struct tool_recording_event event;

    assert_false(tool_recording_next(recording, &event));
}

/* As RMM 23 to 24.10 print pointers: by fmt. */
TEST(rows_of_rmm_23)
{
    const struct tool_recording_facts *facts =
        facts_of(HEADER "21,10:00:01.000250,allocate,0x7f0000000000,1000,0x0\n"
                        "22,10:00:01.000750,allocate failure,0x0,5000,0x55d0deadbeef\n"
                        "21,10:00:03.000250,free,0x7f0000000000,1000,0x2\n");

    assert_int_equal(facts->events, 3);
    assert_int_equal(facts->damaged, 0);
    assert_int_equal(facts->duration_ns, (uint64_t)2 * SECOND);
    for (int time = 0; time < 2; time++) {
        assert_event(RS_RECORDING_ALLOCATE, 0, 0x7f0000000000, 1000, 0);
        assert_event(RS_RECORDING_REFUSED, MS / 2, 0, 5000, 0x55d0deadbeef);
        assert_event(RS_RECORDING_DEALLOCATE, (uint64_t)2 * SECOND, 0x7f0000000000, 1000, 2);
        assert_no_more();
    }
}

/* As RMM from 24.12 on does, by "%p" and a stream of C++; and RMM_LOG as well. */
TEST(rows_of_rmm_25_and_26)
{
    assert_int_equal(facts_of(HEADER "7,23:59:59.999999,allocate,(nil),0,0\n"
                                     "7,23:59:59.999999,allocate failure,(nil),"
                                     "18446744073709551615,0x1\n"
                                     "7,23:59:59.999999,free,0xffffffffffffff00,256,0x7f01\n")
                         ->damaged,
                     0);
    assert_event(RS_RECORDING_ALLOCATE, 0, 0, 0, 0);
    assert_event(RS_RECORDING_REFUSED, 0, 0, ((uint64_t)1 << RS_RECORDING_SIZE_BITS) - 1, 1);
    assert_event(RS_RECORDING_DEALLOCATE, 0, 0xffffffffffffff00, 256, 0x7f01);
    assert_no_more();
}

TEST(what_a_log_does_not_know)
{
    const struct tool_recording_facts *facts = facts_of(HEADER "7,01:02:03:000004,free,0x1,1,0\n");
    time_t begun = (time_t)(facts->header.begun_real_ns / SECOND);
    struct tm parts;

    assert_string_equal(facts->program, "log.csv");
    assert_int_equal(facts->header.process, 0);
    assert_int_equal(facts->header.lost_events, 0);
    assert_non_null(localtime_r(&begun, &parts));
    assert_int_equal(parts.tm_hour * 10000 + parts.tm_min * 100 + parts.tm_sec, 10203);
    assert_int_equal(facts->header.begun_real_ns % SECOND, 4000);
    assert_string_equal(tool_recording_thread(recording, 7), "");
    assert_int_equal(tool_recording_frames(recording, 0, NULL, 0), 0);
}

TEST(times_go_on_after_midnight_and_never_back)
{
    facts_of(HEADER "1,23:59:59.000000,allocate,0x1,1,0\n"
                    "1,00:00:01.000000,allocate,0x2,1,0\n"
                    "1,00:00:00.500000,allocate,0x3,1,0\n" /* another thread, or a clock set back */
                    "1,00:00:02.000000,allocate,0x4,1,0\n"
                    "1,23:00:00.000000,allocate,0x5,1,0\n"
                    "1,00:00:00.000000,allocate,0x6,1,0\n");
    assert_event(RS_RECORDING_ALLOCATE, 0, 1, 1, 0);
    assert_event(RS_RECORDING_ALLOCATE, (uint64_t)2 * SECOND, 2, 1, 0);
    assert_event(RS_RECORDING_ALLOCATE, (uint64_t)2 * SECOND, 3, 1, 0);
    assert_event(RS_RECORDING_ALLOCATE, (uint64_t)3 * SECOND, 4, 1, 0);
    assert_event(RS_RECORDING_ALLOCATE, (uint64_t)(23 * 3600 + 1) * SECOND, 5, 1, 0);
    assert_event(RS_RECORDING_ALLOCATE, (uint64_t)(24 * 3600 + 1) * SECOND, 6, 1, 0);
}

TEST(bad_rows_are_left_out_and_counted)
{
    static const char *const rows[] = {
        "x,01:02:03.000004,free,0x1,1,0\n",
        "-1,01:02:03.000004,free,0x1,1,0\n",
        " 1,01:02:03.000004,free,0x1,1,0\n",
        "1,01:02:03,free,0x1,1,0\n",
        "1,24:02:03.000004,free,0x1,1,0\n",
        "1,01:60:03.000004,free,0x1,1,0\n",
        "1,01:02:03.00000,free,0x1,1,0\n",
        "1,01:02:03.000004,realloc,0x1,1,0\n",
        "1,01:02:03.000004,free,0xg,1,0\n",
        "1,01:02:03.000004,free,,1,0\n",
        "1,01:02:03.000004,free,0x1,0x1,0\n",
        "1,01:02:03.000004,free,0x1,1\n",
        "1,01:02:03.000004,free,0x1,1,0,0\n",
        "1,01:02:03.000004,free,0x1,1,\n",
        "1,01:02:03.000004,free,0x1ffffffffffffffff,1,0\n",
        HEADER,
        "1,01:02:03.000004,free,0x1,1,0x1",
    };
    char text[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        snprintf(text, sizeof(text), HEADER "1,01:02:03.000004,allocate,0x1,1,0\n%s", rows[i]);
        assert_int_equal(facts_of(text)->damaged, 1);
        assert_int_equal(tool_recording_facts(recording)->events, 1);
    }
    assert_true(read_bytes(HEADER "\0\n1,\0\n", sizeof(HEADER) + 5));
    assert_int_equal(tool_recording_facts(recording)->damaged, 2);
}

TEST(empty_lines_and_line_ends_of_other_systems)
{
    assert_int_equal(facts_of("Thread,Time,Action,Pointer,Size,Stream\r\n\r\n"
                              "1,01:02:03.000004,allocate,0x1,1,0\r\n\n")
                         ->damaged,
                     0);
    assert_event(RS_RECORDING_ALLOCATE, 0, 1, 1, 0);
    assert_no_more();
    assert_int_equal(facts_of(HEADER)->events, 0);
    assert_no_more();
}

TEST(other_files_are_no_logs)
{
    static const char *const texts[] = {"", "Thread,Time,Action",
                                        "Thread,Time,Action,Pointer,Size,Stream",
                                        "Thread,Time,Action,Pointer,Size,Streams\n", "1,2,3\n"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        assert_false(read_bytes(texts[i], strlen(texts[i])));
        assert_string_equal(reason,
                            "this is neither a recording of rmmshim nor a log in RMM's CSV format");
    }
}

TEST(a_long_line_is_one_damaged_row)
{
    size_t length = 1 << 20;
    char *text = malloc(length + 1);

    assert_non_null(text);
    memset(text, '1', length);
    memcpy(text, HEADER, sizeof(HEADER) - 1);
    text[length - 1] = '\n';
    text[length] = '\0';
    assert_int_equal(facts_of(text)->damaged, 1);
    free(text);
}
