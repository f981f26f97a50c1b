/* SPDX-License-Identifier: Apache-2.0 */
/* A database of SQLite.  Its library is loaded when it is asked for, so the command needs it
 * neither to be built nor to start; the few functions that are called have not changed since
 * version 3.3.9. */
#include "recording/format.h"
#include "tool/export/export.h"
#include "tool/tool.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* SQLite's own numbers. */
enum { OK = 0, DONE = 101 };

struct sqlite {
    void *library;
    int (*open)(const char *path, void **database);
    int (*close)(void *database);
    const char *(*errmsg)(void *database);
    int (*exec)(void *database, const char *text, void *call, void *data, char **error);
    int (*prepare_v2)(void *database, const char *text, int bytes, void **statement,
                      const char **tail);
    int (*bind_int64)(void *statement, int index, int64_t value);
    int (*bind_null)(void *statement, int index);
    int (*bind_text)(void *statement, int index, const char *text, int bytes,
                     void (*destroy)(void *));
    int (*step)(void *statement);
    int (*reset)(void *statement);
    int (*finalize)(void *statement);
};

struct database {
    struct sqlite sqlite;
    const struct recording *recording;
    void *handle;
    void *insert;       /* the statement in use */
    uint64_t *freed_ns; /* of each block, by its event */
    bool failed;
};

static const char schema[] =
    "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN;"
    "CREATE TABLE recording(pid INTEGER, program TEXT, begun_unix_ns INTEGER, lost_events INTEGER,"
    " missed_events INTEGER, lost_definitions INTEGER);"
    "CREATE TABLE threads(thread INTEGER PRIMARY KEY, id INTEGER, name TEXT);"
    "CREATE TABLE stacks(stack INTEGER PRIMARY KEY, device INTEGER, memory TEXT, resource TEXT);"
    "CREATE TABLE frames(frame INTEGER PRIMARY KEY, text TEXT, is_python INTEGER);"
    "CREATE TABLE sites(site INTEGER, depth INTEGER, frame INTEGER);"
    "CREATE TABLE blocks(block INTEGER PRIMARY KEY, address INTEGER, bytes INTEGER, device INTEGER,"
    " stack INTEGER, stream INTEGER, thread INTEGER, site INTEGER, allocated_ns INTEGER, freed_ns "
    "INTEGER);"
    "CREATE TABLE refusals(ns INTEGER, bytes INTEGER, device INTEGER, stack INTEGER, stream "
    "INTEGER,"
    " thread INTEGER, site INTEGER);"
    "CREATE TABLE marks(ns INTEGER, kind TEXT, thread INTEGER, name TEXT);";

static const char indexes[] = "CREATE INDEX blocks_by_site ON blocks(site);"
                              "CREATE INDEX sites_by_site ON sites(site); COMMIT;";

static bool load(struct sqlite *sqlite)
{
    const struct {
        const char *name;
        void *at;
    } functions[] = {
        {"sqlite3_open", &sqlite->open},
        {"sqlite3_close", &sqlite->close},
        {"sqlite3_errmsg", &sqlite->errmsg},
        {"sqlite3_exec", &sqlite->exec},
        {"sqlite3_prepare_v2", &sqlite->prepare_v2},
        {"sqlite3_bind_int64", &sqlite->bind_int64},
        {"sqlite3_bind_null", &sqlite->bind_null},
        {"sqlite3_bind_text", &sqlite->bind_text},
        {"sqlite3_step", &sqlite->step},
        {"sqlite3_reset", &sqlite->reset},
        {"sqlite3_finalize", &sqlite->finalize},
    };
    bool is_whole = true;

    sqlite->library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; sqlite->library && i < RS_ARRAY_LENGTH(functions); i++) {
        void *address = dlsym(sqlite->library, functions[i].name);
        memcpy(functions[i].at, &address, sizeof(address));
        is_whole = is_whole && address;
    }
    if (sqlite->library && is_whole)
        return true;
    tool_say("SQLite's library is not there (libsqlite3.so.0, Debian's libsqlite3-0)");
    return false;
}

/* ---- rows ---- */

static void check(struct database *database, bool good)
{
    database->failed = database->failed || !good;
}

static void execute(struct database *database, const char *text)
{
    if (!database->failed)
        check(database, database->sqlite.exec(database->handle, text, NULL, NULL, NULL) == OK);
}

static void begin(struct database *database, const char *text)
{
    if (!database->failed)
        check(database, database->sqlite.prepare_v2(database->handle, text, -1, &database->insert,
                                                    NULL) == OK);
}

static void end(struct database *database)
{
    if (database->insert)
        (void)database->sqlite.finalize(database->insert);
    database->insert = NULL;
}

/* SQLite's integers have a sign: numbers from 2^63 on would be negative, and no size or address is.
 */
static void put(struct database *database, int index, uint64_t value)
{
    if (!database->failed)
        check(database, database->sqlite.bind_int64(database->insert, index, (int64_t)value) == OK);
}

static void put_text(struct database *database, int index, const char *text)
{
    if (!database->failed)
        check(database, database->sqlite.bind_text(database->insert, index, text, -1, NULL) == OK);
}

static void end_row(struct database *database)
{
    if (!database->failed)
        check(database, database->sqlite.step(database->insert) == DONE &&
                            database->sqlite.reset(database->insert) == OK);
}

/* ---- tables ---- */

static void put_recording(struct database *database)
{
    const struct recording *recording = database->recording;

    begin(database, "INSERT INTO recording VALUES(?,?,?,?,?,?)");
    put(database, 1, recording->process);
    put_text(database, 2, recording->program);
    put(database, 3, recording->begun_real_ns);
    put(database, 4, recording->lost_events);
    put(database, 5, recording->missed_events);
    put(database, 6, recording->lost_definitions);
    end_row(database);
    end(database);
}

static void put_threads(struct database *database)
{
    const struct recording_items *threads = &database->recording->threads;

    begin(database, "INSERT INTO threads VALUES(?,?,?)");
    for (uint32_t i = 1; i <= threads->count; i++) {
        const struct recording_item *thread = recording_item(threads, i);
        if (!thread)
            continue;
        put(database, 1, i);
        put(database, 2, thread->value);
        put_text(database, 3, thread->text);
        end_row(database);
    }
    end(database);
}

static void put_stacks(struct database *database)
{
    static const char *const memories[] = {"device", "managed", "host"};
    const struct recording_items *stacks = &database->recording->stacks;

    begin(database, "INSERT INTO stacks VALUES(?,?,?,?)");
    for (uint32_t i = 1; i <= stacks->count; i++) {
        const struct recording_item *stack = recording_item(stacks, i);
        if (!stack)
            continue;
        put(database, 1, i);
        put(database, 2, (uint32_t)stack->value);
        put_text(database, 3,
                 stack->value >> 32 < RS_ARRAY_LENGTH(memories) ? memories[stack->value >> 32]
                                                                : "?");
        put_text(database, 4, stack->text);
        end_row(database);
    }
    end(database);
}

static void put_sites(struct database *database)
{
    const struct recording *recording = database->recording;

    begin(database, "INSERT INTO frames VALUES(?,?,?)");
    for (uint32_t i = 1; i <= recording->frames.count; i++) {
        const struct recording_item *frame = recording_item(&recording->frames, i);
        if (!frame)
            continue;
        put(database, 1, i);
        put_text(database, 2, frame->text);
        put(database, 3, frame->value == 1);
        end_row(database);
    }
    end(database);
    begin(database, "INSERT INTO sites VALUES(?,?,?)");
    for (uint32_t i = 1; i <= recording->sites.count; i++) {
        struct recording_site site = recording_site(recording, i);
        for (uint32_t depth = 0; depth < site.count; depth++) {
            put(database, 1, i);
            put(database, 2, depth);
            put(database, 3, site.frames[depth]);
            end_row(database);
        }
    }
    end(database);
}

static bool note_end(void *data, enum recording_step step, const struct recording_event *block,
                     uint64_t ns)
{
    struct database *database = data;

    if (step == RECORDING_GIVES)
        database->freed_ns[block - database->recording->events] = ns + 1;
    return true;
}

/* What blocks and refusals both have, from column `at` on. */
static void put_common(struct database *database, int at, const struct recording_event *event,
                       uint32_t site)
{
    put(database, at, event->size_bytes);
    put(database, at + 1, (uint64_t)recording_device(database->recording, event));
    put(database, at + 2, event->stack);
    put(database, at + 3, recording_stream(database->recording, event));
    put(database, at + 4, event->thread);
    put(database, at + 5, site);
}

static bool put_block(void *data, enum recording_step step, const struct recording_event *block,
                      uint64_t ns)
{
    struct database *database = data;
    size_t index = (size_t)(block - database->recording->events);
    bool is_early = block->kind != RS_RECORDING_ALLOCATE;

    if (step != RECORDING_TAKES)
        return true;
    put(database, 1, index);
    put(database, 2, block->address);
    put_common(database, 3, block, is_early ? 0 : block->site_or_name);
    put(database, 9, ns);
    if (database->freed_ns[index])
        put(database, 10, database->freed_ns[index] - 1);
    else if (!database->failed)
        check(database, database->sqlite.bind_null(database->insert, 10) == OK);
    end_row(database);
    return !database->failed;
}

static void put_blocks(struct database *database)
{
    const struct recording *recording = database->recording;

    database->freed_ns = calloc(recording->count + 1, sizeof(*database->freed_ns));
    if (!database->freed_ns) {
        check(database, false);
        return;
    }
    (void)recording_walk(recording, note_end, database);
    begin(database, "INSERT INTO blocks VALUES(?,?,?,?,?,?,?,?,?,?)");
    (void)recording_walk(recording, put_block, database);
    end(database);
    free(database->freed_ns);
}

static void put_refusals(struct database *database)
{
    const struct recording *recording = database->recording;

    begin(database, "INSERT INTO refusals VALUES(?,?,?,?,?,?,?)");
    for (size_t i = 0; i < recording->count; i++) {
        const struct recording_event *event = &recording->events[i];
        if (event->kind != RS_RECORDING_REFUSED)
            continue;
        put(database, 1, event->ns);
        put_common(database, 2, event, event->site_or_name);
        end_row(database);
    }
    end(database);
}

static void put_marks(struct database *database)
{
    static const char *const kinds[RS_RECORDING_EVENT_KINDS] = {
        [RS_RECORDING_MARK] = "mark",
        [RS_RECORDING_PHASE_BEGIN] = "begin",
        [RS_RECORDING_PHASE_END] = "end",
    };
    const struct recording *recording = database->recording;

    begin(database, "INSERT INTO marks VALUES(?,?,?,?)");
    for (size_t i = 0; i < recording->count; i++) {
        const struct recording_event *event = &recording->events[i];
        if (!kinds[event->kind])
            continue;
        put(database, 1, event->ns);
        put_text(database, 2, kinds[event->kind]);
        put(database, 3, event->thread);
        put_text(database, 4, recording_name(recording, event->site_or_name));
        end_row(database);
    }
    end(database);
}

static void put_all(struct database *database)
{
    execute(database, schema);
    put_recording(database);
    put_threads(database);
    put_stacks(database);
    put_sites(database);
    put_blocks(database);
    put_refusals(database);
    put_marks(database);
    execute(database, indexes);
}

/* SQLite takes an empty file for a new database. */
bool export_sqlite(const struct recording *recording, const char *path)
{
    struct database database = {.recording = recording};

    if (!load(&database.sqlite))
        return false;
    check(&database, database.sqlite.open(path, &database.handle) == OK);
    put_all(&database);
    if (database.failed)
        tool_say("%s: %s", path, database.sqlite.errmsg(database.handle));
    check(&database, database.sqlite.close(database.handle) == OK);
    dlclose(database.sqlite.library);
    return !database.failed;
}
