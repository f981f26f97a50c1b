/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim stats: prints all counters of running processes. rmmshim serve: serves the counters of
 * all processes to Prometheus, by HTTP.  The server is libmicrohttpd.  The build needs only its
 * headers: `serve` itself loads the library, which needs ten more libraries.  These would add 2 ms
 * to every start of rmmshim, which would fail if one of them is missing. */
#include "base/check.h"
#include "base/lock.h"
#include "base/process.h"
#include "report/counters.h"
#include "tool/row.h"
#include "tool/tool.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- what is written of the processes that were read ---- */

static void put_rows(struct rs_node *list, const struct watched *of, bool has_counters)
{
    RS_ASSERT(of->count == of->page.count);
    for (size_t i = 0; i < of->count; i++) {
        struct rs_node *object = row_put(list, &of->rows[i]);
        if (has_counters)
            rs_report_fill_counters(object, &of->page.stacks[i].report, true, false);
    }
}

/* Writes the processes to the descriptor: as text, as JSON (with is_of_all an array), or for
 * Prometheus.  With `has_counters` Prometheus also gets every counter of every resource; these
 * counters show developers what a stack does.  Returns false if writing failed, after printing a
 * line that begins with `name`. */
static bool write_counters(const struct watch *watch, enum rs_statistics_format format,
                           bool is_of_all, bool has_counters, int fd, const char *name)
{
    static struct rs_document document;
    struct rs_node *root = &document.root;
    bool is_written;

    rs_document_begin(&document);
    if (is_of_all || format == RS_STATISTICS_PROMETHEUS)
        root = rs_node_list(root, "processes");
    for (size_t i = 0; i < watch->count; i++) {
        const struct watched *of = &watch->processes[i];
        if (format == RS_STATISTICS_PROMETHEUS)
            put_rows(root, of, has_counters);
        else if (of->page.count > 0)
            rs_report_fill(is_of_all ? rs_node_object(root, NULL) : root,
                           &(struct rs_report_subject){
                               .process = of->process.number,
                               .program = of->page.program,
                               .rank = of->page.rank,
                               .stacks = of->page.stacks,
                               .stack_count = of->page.count,
                           },
                           format);
    }
    is_written = tool_print(root, format, fd, name);
    rs_document_release(&document);
    return is_written;
}

/* ---- rmmshim stats ---- */

/* Reads one process.  Returns false after saying why it has no counters. */
static bool read_one(struct watch *watch, int number)
{
    enum process_answer answer = watch_add(watch, number);

    watch_read(watch);
    if (watch->with_rows == 0)
        tool_say("process %d %s", number,
                 answer != PROCESS_SERVED ? process_answer_text(answer)
                 : watch->unreadable ? "is served by rmmshim, but its counters are damaged and "
                                       "cannot be shown; start it again to have new ones"
                                     : "is served by rmmshim, but has allocated no memory yet");
    return watch->with_rows > 0;
}

static int show_counters(const char *whose, enum rs_statistics_format format, bool has_counters)
{
    struct watch watch = {.count = 0};
    bool is_of_all = strcmp(whose, "all") == 0, is_good = true;
    int number = rs_process_parse(whose);

    if (!is_of_all && !number) {
        tool_say("'%s' is neither a process ID nor 'all'; `rmmshim ls` lists the processes", whose);
        return TOOL_USAGE;
    }
    if (is_of_all) {
        watch_sample(&watch);
        if (watch.with_rows == 0)
            rows_say_none();
        rows_say_unreadable(&watch);
    } else {
        is_good = read_one(&watch, number);
    }
    is_good = is_good && write_counters(&watch, format, is_of_all, has_counters, STDOUT_FILENO,
                                        "standard output");
    watch_release(&watch);
    return is_good ? TOOL_OK : TOOL_FINDING;
}

static int stats(char **arguments)
{
    bool is_json = false, is_prometheus = false, has_counters = false;
    const struct tool_option options[] = {
        {.name = "--json", .flag = &is_json},
        {.name = "--prom", .flag = &is_prometheus},
        {.name = "--all-metrics", .flag = &has_counters},
        {.name = NULL},
    };

    if (!tool_take_options(arguments, true, options))
        return TOOL_USAGE;
    if (is_json && is_prometheus)
        tool_say("use only one of --json and --prom");
    else if (!*arguments)
        tool_say(
            "no process ID given; `rmmshim ls` lists the processes, and 'all' means all of them");
    else if (arguments[1])
        tool_say("expected one process ID, or 'all'");
    else if (has_counters && !is_prometheus)
        tool_say("--all-metrics needs --prom; text and JSON have all counters anyway");
    else
        return show_counters(*arguments,
                             is_json         ? RS_STATISTICS_JSON
                             : is_prometheus ? RS_STATISTICS_PROMETHEUS
                                             : RS_STATISTICS_TEXT,
                             has_counters);
    return TOOL_USAGE;
}

const struct tool_command tool_stats = {
    .name = "stats",
    .arguments = "PID|all [--json|--prom] [--all-metrics]",
    .summary = "Shows all counters of a process, or of all processes",
    .run = stats,
    .help =
        "Prints the counters that RMM_STATISTICS reports at exit, as they are now; a few that can\n"
        "only be counted within the process are left out.\n\n"
        "--json         print JSON, as RMM_STATISTICS=json writes it; for `all` an array of such "
        "objects\n"
        "--prom         print metrics for Prometheus's textfile collector: what each process\n"
        "               uses, holds and may hold\n"
        "--all-metrics  with --prom: add the counters of each memory resource\n\n"
        "exit codes: 0 printed; 1 the process has no counters, or they cannot be read;\n"
        "2 wrong usage\n\n"
        "example: rmmshim stats all --prom >/var/lib/node_exporter/rmmshim.prom",
};

/* ---- rmmshim serve ---- */

/* The default of --listen. */
#define ADDRESS_DEFAULT "127.0.0.1:9835"

enum { BACKLOG = 16, PORT_MAX = 65535, PORT_BYTES = 8, ADDRESS_TEXT_BYTES = INET6_ADDRSTRLEN + 16 };

union address {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

/* ---- the address ---- */

static bool refuse_address(const char *text, const char *at, const char *what)
{
    struct rs_diagnostics diagnostics = tool_diagnostics();

    rs_diagnose(&diagnostics, &(struct rs_source){"--listen", text}, at,
                "%s; write an address as in 127.0.0.1:9835 or [::1]:9835, or a port alone", what);
    return false;
}

static bool take_port(const char *text, const char *at, in_port_t *port)
{
    size_t digits = strspn(at, "0123456789");
    unsigned long number = digits > 0 && digits <= 5 ? strtoul(at, NULL, 10) : PORT_MAX + 1ul;

    if (!*at)
        return refuse_address(text, at, "no port");
    if (at[digits])
        return refuse_address(text, at + digits, "a port is a number");
    if (number > PORT_MAX)
        return refuse_address(text, at, "a port is at most 65535");
    *port = htons((in_port_t)number);
    return true;
}

/* Parses "127.0.0.1:9835", "[::1]:9835", or a port alone, for 127.0.0.1.  Returns false after
 * printing where the mistake is. */
static bool parse_address(const char *text, union address *address)
{
    bool is_ipv6 = *text == '[', is_port = !text[strspn(text, "0123456789")];
    const char *begin = text + is_ipv6;
    const char *end = is_ipv6 ? strchr(text, ']') : text + strcspn(text, ":");
    char host[INET6_ADDRSTRLEN] = "127.0.0.1";
    in_port_t *port = is_ipv6 ? &address->ipv6.sin6_port : &address->ipv4.sin_port;
    void *bytes = is_ipv6 ? (void *)&address->ipv6.sin6_addr : (void *)&address->ipv4.sin_addr;

    memset(address, 0, sizeof(*address));
    address->any.sa_family = is_ipv6 ? AF_INET6 : AF_INET;
    if (!end)
        return refuse_address(text, text + strlen(text), "']' is missing after the IPv6 address");
    if (!is_ipv6 && *end && strchr(end + 1, ':'))
        return refuse_address(text, text, "an IPv6 address needs brackets around it");
    if (!is_port)
        snprintf(host, sizeof(host), "%.*s", (int)(end - begin), begin);
    if ((!is_port && (size_t)(end - begin) >= sizeof(host)) ||
        inet_pton(is_ipv6 ? AF_INET6 : AF_INET, host, bytes) != 1)
        return refuse_address(
            text, begin,
            is_ipv6 ? "this is not an IPv6 address"
                    : "this is not an IPv4 address, and host names are not looked up");
    end += is_ipv6;
    if (!is_port && *end != ':')
        return refuse_address(text, end, "':' and a port are missing after the address");
    return take_port(text, is_port ? text : end + 1, port);
}

#ifndef RS_HTTP

static int serve_at(union address *address, const char *text, bool has_counters)
{
    (void)address, (void)text, (void)has_counters;
    tool_say("this build has no HTTP server (libmicrohttpd); `rmmshim stats all --prom` prints the "
             "metrics");
    return TOOL_FINDING;
}

#else

#include <microhttpd.h>

/* Formats an address as parse_address takes it; the port may be 0. */
static void format_address(const union address *address, char text[ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "", port[PORT_BYTES] = "";

    (void)getnameinfo(&address->any, sizeof(*address), host, sizeof(host), port, sizeof(port),
                      NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, ADDRESS_TEXT_BYTES, address->any.sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
             host, port);
}

/* True when only programs of this machine can reach the address. */
static bool is_loopback(const union address *address)
{
    const struct in6_addr *ipv6 = &address->ipv6.sin6_addr;

    if (address->any.sa_family == AF_INET)
        return ntohl(address->ipv4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return IN6_IS_ADDR_LOOPBACK(ipv6) ||
           (IN6_IS_ADDR_V4MAPPED(ipv6) && ipv6->s6_addr[12] == IN_LOOPBACKNET);
}

static bool listens(int fd, union address *address)
{
    socklen_t bytes =
        address->any.sa_family == AF_INET6 ? sizeof(address->ipv6) : sizeof(address->ipv4);
    const int yes = 1;

    /* Without SO_REUSEADDR, connections of a server that has just ended would block the port for a
     * minute. */
    return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
           bind(fd, &address->any, bytes) == 0 && listen(fd, BACKLOG) == 0 &&
           getsockname(fd, &address->any, &bytes) == 0;
}

/* Opens a socket that listens at the address.  If the port was 0, stores the chosen one in the
 * address.  Returns a descriptor, or -errno. */
static int open_listener(union address *address)
{
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error;

    if (fd < 0)
        return -errno;
    if (listens(fd, address))
        return fd;
    error = errno;
    close(fd);
    return -error;
}

enum {
    CONNECTIONS_MAX = 16, /* further connections wait until one of these ends */
    IDLE_SECONDS = 10,    /* a connection that has sent and taken nothing for this long is closed */
    /* A connection is closed after this long; Prometheus gives a request 10 s by default. */
    LONGEST_SECONDS = 20,
    REQUEST_BYTES = 16 << 10,
};

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

/* The functions of libmicrohttpd. */
static struct {
#define FIELD(name) __typeof__(&MHD_##name) name;
    CALLS(FIELD)
#undef FIELD
} mhd;

static bool load_http(void)
{
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        tool_say("the HTTP server's library cannot be loaded: %s; install libmicrohttpd, or use "
                 "`rmmshim stats all --prom`",
                 dlerror());
        return false;
    }
#define FIND(name)                                                                                 \
    mhd.name = (__typeof__(mhd.name))(uintptr_t)dlsym(library, "MHD_" #name);                      \
    if (!mhd.name) {                                                                               \
        tool_say("the HTTP server cannot be used: %s has no function MHD_" #name                   \
                 "; install libmicrohttpd again, or use `rmmshim stats all --prom`",               \
                 library_name);                                                                    \
        return false;                                                                              \
    }
    CALLS(FIND)
#undef FIND
    return true;
}

/* ---- an answer ---- */

/* Sends an answer.  Each connection serves one request, so that clients that stay connected do not
 * take the places of others. */
static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned status,
                                     struct MHD_Response *response, const char *type)
{
    enum MHD_Result result;

    if (!response)
        return MHD_NO; /* libmicrohttpd then closes the connection */
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

static bool has_counters; /* the answers include the counters of each resource */

/* Prints how many processes are left out, if that number has changed. */
static void say_unreadable(const struct watch *watch)
{
    static size_t unreadable, unexamined;

    if (watch->unreadable != unreadable || watch->unexamined != unexamined)
        rows_say_unreadable(watch);
    unreadable = watch->unreadable;
    unexamined = watch->unexamined;
}

/* Reads all processes and writes them to a memory file.  Returns its descriptor, or -1. */
static int make_metrics(void)
{
    struct watch watch = {.count = 0};
    int fd = memfd_create("rmmshim-metrics", MFD_CLOEXEC);

    watch_sample(&watch);
    say_unreadable(&watch);
    if (fd >= 0 && !write_counters(&watch, RS_STATISTICS_PROMETHEUS, true, has_counters, fd,
                                   "metrics were not sent to an HTTP client")) {
        close(fd);
        fd = -1;
    }
    watch_release(&watch);
    return fd;
}

static enum MHD_Result send_metrics(struct MHD_Connection *connection)
{
    int fd = make_metrics();
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    struct MHD_Response *response;

    if (bytes < 0)
        return send_text(
            connection, MHD_HTTP_SERVICE_UNAVAILABLE,
            "rmmshim: no metrics this time: the server lacks host memory or file descriptors\n");
    /* The response closes fd when it ends. */
    response = mhd.create_response_from_fd64((uint64_t)bytes, fd);
    if (!response)
        close(fd);
    return send_response(connection, MHD_HTTP_OK, response,
                         "text/plain; version=0.0.4; charset=utf-8");
}

/* Answers as soon as the head of a request has arrived, without waiting for a body, since no
 * request here needs one. */
static enum MHD_Result answer_request(void *data, struct MHD_Connection *connection,
                                      const char *url, const char *method, const char *version,
                                      const char *upload, size_t *upload_bytes, void **state)
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

/* An open connection.  The place is given up just before `fd` is closed, so `fd` never means
 * another file. */
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

/* Shuts down connections that last too long; the server's thread then closes them. libmicrohttpd's
 * idle time begins again with each byte, so a client that sends a byte now and then could stay
 * connected for ever. */
static void close_slow(void)
{
    uint64_t now_ns = rs_clock_ns();

    rs_mutex_lock(&places_lock);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        if (places[i].is_taken && now_ns - places[i].begin_ns > LONGEST_SECONDS * 1000000000ull)
            (void)shutdown(places[i].fd, SHUT_RDWR);
    rs_mutex_unlock(&places_lock);
}

/* ---- the server ---- */

/* Adds a signal that ends the command, unless it was ignored when the command began, as SIGINT is
 * in a background job of a script. */
static void add_end(sigset_t *ends, int number)
{
    struct sigaction action;

    if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
        sigaddset(ends, number);
}

/* Blocks the signals that end the command, and stores them in *ends.  Called before the server
 * makes its thread, which inherits the blocked signals, so that only wait_for_end takes them. */
static void block_ends(sigset_t *ends)
{
    sigemptyset(ends);
    add_end(ends, SIGINT);
    add_end(ends, SIGTERM);
    sigprocmask(SIG_BLOCK, ends, NULL);
    /* A client may leave in the middle of an answer, which raises SIGPIPE. libmicrohttpd only
     * blocks the signal in its own thread, and not on every system. */
    signal(SIGPIPE, SIG_IGN);
}

static void wait_for_end(const sigset_t *ends)
{
    const struct timespec second = {.tv_sec = 1};

    while (sigtimedwait(ends, NULL, &second) < 0)
        close_slow();
}

static void say_where(const union address *address)
{
    char text[ADDRESS_TEXT_BYTES];

    format_address(address, text);
    tool_say("metrics at http://%s/metrics", text);
    if (!is_loopback(address))
        tool_say("%s is not a loopback address: whoever can reach it can see which programs run "
                 "under rmmshim, and how much GPU memory they have",
                 text);
}

static int serve_at(union address *address, const char *text, bool counters)
{
    struct MHD_Daemon *server;
    sigset_t ends;
    int socket;

    if (!load_http())
        return TOOL_FINDING;
    socket = open_listener(address);
    if (socket < 0) {
        tool_say("--listen %s: %s", text, strerror(-socket));
        return TOOL_FINDING;
    }
    block_ends(&ends);
    has_counters = counters;
    server = mhd.start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD, 0, NULL, NULL, answer_request, NULL, MHD_OPTION_LISTEN_SOCKET,
        socket, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)REQUEST_BYTES, MHD_OPTION_NOTIFY_CONNECTION, note_connection, NULL, MHD_OPTION_END);
    if (!server) {
        tool_say("the HTTP server cannot start: %s", strerror(errno));
        close(socket);
        return TOOL_FINDING;
    }
    say_where(address);
    wait_for_end(&ends);
    mhd.stop_daemon(server);
    return TOOL_OK;
}

#endif

/* ---- the command ---- */

static int serve(char **arguments)
{
    const char *listen = ADDRESS_DEFAULT;
    bool counters = false;
    const struct tool_option options[] = {
        {.name = "--listen", .value = &listen},
        {.name = "--all-metrics", .flag = &counters},
        {.name = NULL},
    };
    union address address;

    if (!tool_take_options(arguments, true, options) || !tool_has_no_more(arguments) ||
        !parse_address(listen, &address))
        return TOOL_USAGE;
    return serve_at(&address, listen, counters);
}

const struct tool_command tool_serve = {
    .name = "serve",
    .arguments = "[--listen ADDRESS] [--all-metrics]",
    .summary = "Serves the counters of all processes to Prometheus",
    .run = serve,
    .help =
        "Answers each GET /metrics with what `rmmshim stats all --prom` would print at that\n"
        "moment. SIGINT or SIGTERM ends it.\n\n"
        "--listen ADDRESS  the address and port to listen on (default " ADDRESS_DEFAULT "), as in\n"
        "                  [::1]:9835; if only a port is given, the address is 127.0.0.1; if the\n"
        "                  port is 0, a free port is chosen and printed to stderr\n"
        "--all-metrics     add the counters of each memory resource, which are for developers\n\n"
        "All users of this machine can read the metrics at a loopback address; at any other\n"
        "address everybody on the network can.\n\n"
        "exit codes: 0 ended by a signal; 1 the HTTP server cannot start; 2 wrong usage",
};
