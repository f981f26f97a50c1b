/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the socket of `rmmshim run`.  Each begins with a byte of switches, below, and the
 * number of bytes that follow.  They come from processes that have ended, as a page of one that
 * lives would be held for as long as that does. */
#include "around_run.h"
#include "base/check.h"
#include "fuzzer.h"
#include "report/publish.h"
#include "shared/job.h"
#include "shared/published.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WITH_HEAD = 1,  /* the layout and the token are made right first */
    WITH_PAGE = 2,  /* a descriptor comes with it: of a page ... */
    WITH_OTHER = 4, /* ... or of another file */
    IS_CUT = 8,     /* the sender closes the connection without a message */
    HAS_TAIL = 16,  /* it is longer than a request */
    MESSAGES_MAX = 8,
    MESSAGE_BYTES = 128,
};

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t address_bytes;
static char token[RS_JOB_WORD_BYTES];
static int ends[2]; /* what ends the serving: it can always be read */
static int other = -1;

static void begin(void)
{
    const char *variable;

    setenv("RMM_LIMIT_JOB", "1GiB", 1);
    unsetenv(RS_JOB_VARIABLE);
    rs_publish_begin();
    must(rs_published_head() && limit_job_begin(false), "no page, or no job");
    job_begin();
    variable = getenv(RS_JOB_VARIABLE);
    must(variable && variable[RS_JOB_WORD_BYTES - 1] == ':', "no job");
    memcpy(address.sun_path + 1, variable, RS_JOB_WORD_BYTES - 1);
    memcpy(token, variable + RS_JOB_WORD_BYTES, RS_JOB_WORD_BYTES - 1);
    address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + RS_JOB_WORD_BYTES);
    must(pipe2(ends, O_CLOEXEC) == 0 && write(ends[1], "", 1) == 1, "no pipe");
    other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(other >= 0, "no other file");
}

/* A process connects, and ends. */
static int connect_as_another(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), status;
    pid_t child = vfork(); /* a fork takes as long as all the rest */

    must(fd >= 0 && child >= 0, "no socket, or no process");
    if (child == 0)
        _exit(connect(fd, (const struct sockaddr *)&address, address_bytes) != 0);
    must(waitpid(child, &status, 0) == child && status == 0, "it cannot connect");
    return fd;
}

/* A process that lives is held; so none is named that does. */
static void name_nobody(struct rs_job_request *request)
{
    int number = (int)request->number;

    if (request->wish == RS_JOB_PASS_PAGE &&
        (number <= 0 || kill(number, 0) == 0 || errno != ESRCH))
        request->number = INT32_MAX;
}

/* Returns whether it is a request that the serving process grants or counts. It may be one without
 * WITH_HEAD, as libFuzzer learns what is compared, so also the token. */
static bool send_one(struct input *input)
{
    unsigned switches = (unsigned)next_number(input, 1);
    size_t bytes = rs_min(next_number(input, 1) % MESSAGE_BYTES, input->left);
    union {
        struct rs_job_request request;
        char bytes[MESSAGE_BYTES];
    } message = {.bytes = {0}};
    int fd = switches & WITH_PAGE ? rs_published_file()->fd : switches & WITH_OTHER ? other : -1;
    int socket;

    memcpy(message.bytes, input->at, bytes);
    input->at += bytes;
    input->left -= bytes;
    if (switches & WITH_HEAD) {
        snprintf(message.request.layout, sizeof(message.request.layout), "%s", RS_JOB_LAYOUT);
        memcpy(message.request.token, token, sizeof(token));
        message.request.wish %= RS_JOB_PASS_PAGE + 2;
        bytes = sizeof(message.request) + (switches & HAS_TAIL ? 1 : 0);
    }
    name_nobody(&message.request);
    socket = connect_as_another();
    if (!(switches & IS_CUT) && bytes > 0)
        must(rs_job_send(socket, &message, bytes, fd) == 0, "it cannot be sent");
    close(socket);
    return bytes == sizeof(message.request) && !(switches & IS_CUT) &&
           memcmp(message.request.token, token, sizeof(token)) == 0;
}

static unsigned open_files(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 64; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};
    struct summary summary;
    unsigned before;
    size_t asked = 0;

    if (!token[0])
        begin();
    before = open_files();
    job_watch();
    for (unsigned i = 0; i < MESSAGES_MAX && input.left > 0; i++)
        asked += send_one(&input);
    job_serve_until(ends[0]);
    job_end();
    job_take_summary(&summary);
    must(summary.count + summary.missed <= asked, "more processes than have asked");
    summary_clear(&summary);
    must(open_files() == before, "a descriptor is left open");
    return 0;
}
