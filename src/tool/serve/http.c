/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/serve/http.h"

#include "base/check.h"
#include "tool/row.h"
#include "tool/subjects.h"
#include "tool/tool.h"

#ifndef RS_HTTP

bool http_load(void)
{
    tool_say("this build has no HTTP server: it was made without libmicrohttpd");
    return false;
}

bool http_begin(int socket, bool has_counters)
{
    (void)socket;
    (void)has_counters;
    return false;
}

void http_close_slow(void)
{
}

void http_end(void)
{
}

#else

#include "base/lock.h"

#include <dlfcn.h>
#include <microhttpd.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 16, /* further ones wait until one of these ends */
    IDLE_SECONDS = 10,    /* after which a connection is closed that sends or takes nothing */
    LONGEST_SECONDS = 20, /* after which a connection is closed: Prometheus asks for 10 s at most,
                             unless it is told otherwise */
    REQUEST_BYTES = 16 << 10,
};

/* Since 2014 the library has this name. */
static const char library_name[] = "libmicrohttpd.so.12";

#define CALLS(X)                                                                                   \
    X(start_daemon)                                                                                \
    X(stop_daemon)                                                                                 \
    X(create_response_from_buffer)                                                                 \
    X(create_response_from_fd64)                                                                   \
    X(add_response_header)                                                                         \
    X(queue_response)                                                                              \
    X(get_connection_info)                                                                         \
    X(destroy_response)

/* The library's functions. */
static struct {
#define FIELD(name) __typeof__(&MHD_##name) name;
    CALLS(FIELD)
#undef FIELD
} mhd;

static struct MHD_Daemon *server;

bool http_load(void)
{
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        tool_say("no HTTP server: %s", dlerror());
        return false;
    }
#define FIND(name)                                                                                 \
    mhd.name = (__typeof__(mhd.name))(uintptr_t)dlsym(library, "MHD_" #name);                      \
    if (!mhd.name) {                                                                               \
        tool_say("no HTTP server: %s has no MHD_" #name, library_name);                            \
        return false;                                                                              \
    }
    CALLS(FIND)
#undef FIND
    return true;
}

/* ---- an answer ---- */

/* What all answers have.  A connection is for one request, so that those who stay connected do not
 * take the places of others. */
static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned status,
                                     struct MHD_Response *response, const char *type)
{
    enum MHD_Result result;

    if (!response)
        return MHD_NO; /* the connection is closed */
    mhd.add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    mhd.add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        mhd.add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = mhd.queue_response(connection, status, response);
    mhd.destroy_response(response);
    return result;
}

static enum MHD_Result send_text(struct MHD_Connection *connection, unsigned status,
                                 const char *text)
{
    struct MHD_Response *response = mhd.create_response_from_buffer(
        strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);

    return send_response(connection, status, response, "text/plain; charset=utf-8");
}

static bool has_counters; /* of each resource too */

/* Says how many processes are left out when that number has changed. */
static void say_unreadable(size_t count)
{
    static size_t said;

    if (count != said)
        rows_say_unreadable(count);
    said = count;
}

/* Reads all processes and writes them to a memory file: its descriptor, or -1. */
static int make_metrics(void)
{
    struct subjects subjects = {.count = 0};
    int fd = memfd_create("rmmshim-metrics", MFD_CLOEXEC);

    subjects_add_all(&subjects);
    say_unreadable(subjects.unreadable);
    if (fd >= 0 && (subjects.is_short || !subjects_write_metrics(&subjects, has_counters, fd,
                                                                 "the answer to a request"))) {
        close(fd);
        fd = -1;
    }
    subjects_release(&subjects);
    return fd;
}

static enum MHD_Result send_metrics(struct MHD_Connection *connection)
{
    int fd = make_metrics();
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    struct MHD_Response *response;

    if (bytes < 0)
        return send_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "rmmshim: out of memory\n");
    response = mhd.create_response_from_fd64((uint64_t)bytes, fd); /* closes fd at its end */
    if (!response)
        close(fd);
    return send_response(connection, MHD_HTTP_OK, response,
                         "text/plain; version=0.0.4; charset=utf-8");
}

/* Answers as soon as the head of the request is there: a body, which no request here needs, is not
 * waited for. */
static enum MHD_Result answer(void *data, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    static int answered;

    (void)data, (void)version, (void)upload;
    if (*state == &answered) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    *state = &answered;
    if (strcmp(url, "/metrics") != 0)
        return send_text(connection, MHD_HTTP_NOT_FOUND, "rmmshim: metrics are at /metrics\n");
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                         "rmmshim: only GET and HEAD are answered\n");
    return send_metrics(connection);
}

/* ---- connections that last too long ---- */

/* A connection, from its beginning until before its descriptor is closed. */
struct place {
    bool is_taken;
    int fd;
    uint64_t begin_ns;
};

static struct place places[CONNECTIONS_MAX];
static struct rs_mutex places_lock = RS_MUTEX_INIT(RS_RANK_ALONE);

static struct place *take_place(int fd)
{
    struct place *found = NULL;

    rs_mutex_lock(&places_lock);
    for (size_t i = 0; i < CONNECTIONS_MAX && !found; i++)
        if (!places[i].is_taken)
            found = &places[i];
    if (found)
        *found = (struct place){true, fd, rs_clock_ns()};
    rs_mutex_unlock(&places_lock);
    return found;
}

static void leave_place(struct place *place)
{
    rs_mutex_lock(&places_lock);
    place->is_taken = false;
    rs_mutex_unlock(&places_lock);
}

static void note_connection(void *data, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode what)
{
    const union MHD_ConnectionInfo *info =
        mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    (void)data;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *context = info ? take_place(info->connect_fd) : NULL;
    else if (*context)
        leave_place(*context);
}

/* The idle time begins anew with each byte, so that who sends one now and then would keep a place
 * without end.  A connection that is shut down is closed by the server's thread. */
void http_close_slow(void)
{
    uint64_t now_ns = rs_clock_ns();

    rs_mutex_lock(&places_lock);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        if (places[i].is_taken && now_ns - places[i].begin_ns > LONGEST_SECONDS * 1000000000ull)
            (void)shutdown(places[i].fd, SHUT_RDWR);
    rs_mutex_unlock(&places_lock);
}

/* ---- the server ---- */

bool http_begin(int socket, bool counters)
{
    has_counters = counters;
    server = mhd.start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD, 0, NULL, NULL, answer, NULL, MHD_OPTION_LISTEN_SOCKET, socket,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
        MHD_OPTION_NOTIFY_CONNECTION, note_connection, NULL, MHD_OPTION_END);
    return server != NULL;
}

void http_end(void)
{
    mhd.stop_daemon(server);
    server = NULL;
}

#endif
