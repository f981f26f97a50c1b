/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim serve: counters of all processes for Prometheus, by HTTP. */
#include "tool/serve/address.h"
#include "tool/serve/http.h"
#include "tool/tool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A signal that was ignored when the command began, as SIGINT is in a script's background job, does
 * not end it. */
static void add_end(sigset_t *ends, int number)
{
    struct sigaction action;

    if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
        sigaddset(ends, number);
}

/* The signals that end the command.  They are blocked before the server makes its thread, which
 * inherits that, so that only wait_for_end takes them. */
static void block_ends(sigset_t *ends)
{
    sigemptyset(ends);
    add_end(ends, SIGINT);
    add_end(ends, SIGTERM);
    sigprocmask(SIG_BLOCK, ends, NULL);
    /* Clients may leave in the middle of an answer, and libmicrohttpd blocks the signal in its
     * thread only where it can. */
    signal(SIGPIPE, SIG_IGN);
}

static void wait_for_end(const sigset_t *ends)
{
    const struct timespec second = {.tv_sec = 1};

    while (sigtimedwait(ends, NULL, &second) < 0)
        http_close_slow();
}

static void say_where(const union address *address)
{
    char text[ADDRESS_TEXT_BYTES];

    address_format(address, text);
    tool_say("metrics at http://%s/metrics", text);
    if (!address_is_loopback(address))
        tool_say("%s is not a loopback address: whoever can reach it can see which programs this "
                 "user runs and how much memory they have",
                 text);
}

static int serve_at(union address *address, const char *text, bool has_counters)
{
    sigset_t ends;
    int socket = address_listen(address);

    if (socket < 0) {
        tool_say("--listen %s: %s", text, strerror(-socket));
        return TOOL_FINDING;
    }
    block_ends(&ends);
    if (!http_begin(socket, has_counters)) {
        tool_say("the HTTP server cannot start: %s", strerror(errno));
        close(socket);
        return TOOL_FINDING;
    }
    say_where(address);
    wait_for_end(&ends);
    http_end();
    return TOOL_OK;
}

/* The value of "--listen ADDRESS" or "--listen=ADDRESS"; NULL after saying what is wrong. */
static const char *take_listen(char ***arguments)
{
    static const char *const options[] = {"--listen", "--all-metrics", NULL};
    const char *word = **arguments;
    bool failed = false;
    const char *value = tool_option_value(arguments, options[0], &failed);

    if (value || failed)
        return value;
    if (*word == '-')
        tool_say_unknown("option", word, options);
    else
        tool_say("unexpected argument '%s'", word);
    return NULL;
}

static int serve(char **arguments)
{
    const char *listen = ADDRESS_DEFAULT;
    bool has_counters = false;
    union address address;

    for (; *arguments; arguments++)
        if (strcmp(*arguments, "--all-metrics") == 0)
            has_counters = true;
        else if (!(listen = take_listen(&arguments)))
            return TOOL_USAGE;
    if (!address_parse(listen, &address))
        return TOOL_USAGE;
    return http_load() ? serve_at(&address, listen, has_counters) : TOOL_FINDING;
}

static void help(void)
{
    puts("Answers GET /metrics with what `rmmshim stats all --prom` prints at that moment, until "
         "SIGINT or\n"
         "SIGTERM.\n\n"
         "--listen ADDRESS  " ADDRESS_DEFAULT
         " by default; [::1]:9835; a port alone means 127.0.0.1;\n"
         "                  port 0 takes a free one, which the line on stderr names\n"
         "--all-metrics     also each counter of each resource, which tell developers what a stack "
         "does\n\n"
         "All users of this machine can read a loopback address, everybody on the network any "
         "other one.\n\n"
         "exit codes: 0 ended by a signal, 1 when it cannot listen or has no HTTP server, 2 wrong "
         "usage");
}

const struct tool_command tool_serve = {
    .name = "serve",
    .arguments = "[--listen ADDRESS] [--all-metrics]",
    .summary = "Serves the counters of all processes to Prometheus",
    .run = serve,
    .help = help,
};
