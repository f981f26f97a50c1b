/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/screen/terminal.h"

#include "base/check.h"
#include "base/log.h"
#include "tool/tool.h"

#include <errno.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

/* Another screen, no cursor, no wrapping of long lines; and back. */
static const char take_screen[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
static const char give_screen[] = "\033[0m\033[?7h\033[?25h\033[?1049l";

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

static struct {
    struct termios before;
    sigset_t mask_before;
    int signals; /* signalfd */
    bool is_taken;
} terminal = {.signals = -1};

/* ---- what it can do ---- */

bool terminal_is_usable(void)
{
    const char *name = getenv("TERM");

    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && name && *name &&
           strcmp(name, "dumb") != 0;
}

bool terminal_has_colors(void)
{
    static const char *const without[] = {"dumb", "vt1", "vt2", "vt3", "vt4", "vt5"};
    const char *no_color = getenv("NO_COLOR"), *name = getenv("TERM");
    size_t length = name ? strlen(name) : 0;

    if ((no_color && *no_color) || length == 0)
        return false;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(without); i++)
        if (strncmp(name, without[i], strlen(without[i])) == 0)
            return false;
    return !strstr(name, "-mono") && (length < 2 || strcmp(name + length - 2, "-m") != 0);
}

bool terminal_has_blocks(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

static int number_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    int number = text ? atoi(text) : 0;

    return number > 0 ? number : otherwise;
}

void terminal_size(int *columns, int *lines)
{
    struct winsize size = {0};
    bool is_known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;

    *columns = is_known && size.ws_col ? size.ws_col : number_of("COLUMNS", 80);
    *lines = is_known && size.ws_row ? size.ws_row : number_of("LINES", 24);
}

/* ---- taking it ---- */

static void write_text(const char *text)
{
    (void)rs_write_all(STDOUT_FILENO, text, strlen(text));
}

static void take(void)
{
    struct termios raw = terminal.before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    write_text(take_screen);
    terminal.is_taken = true;
}

static void give(void)
{
    if (!terminal.is_taken)
        return;
    terminal.is_taken = false;
    write_text(give_screen);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal.before);
}

bool terminal_begin(void)
{
    sigset_t signals;

    sigemptyset(&signals);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(caught); i++)
        sigaddset(&signals, caught[i]);
    terminal.signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (terminal.signals < 0 || tcgetattr(STDIN_FILENO, &terminal.before) != 0) {
        tool_say("the terminal: %s", strerror(errno));
        return false;
    }
    sigprocmask(SIG_BLOCK, &signals, &terminal.mask_before);
    (void)atexit(terminal_end);
    take();
    return true;
}

void terminal_end(void)
{
    give();
    if (terminal.signals < 0)
        return;
    close(terminal.signals);
    terminal.signals = -1;
    sigprocmask(SIG_SETMASK, &terminal.mask_before, NULL);
}

/* ---- signals ---- */

/* As without us: who waits for this process sees the signal. */
static void end_by(int number)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t only;

    give();
    sigaction(number, &usual, NULL);
    sigemptyset(&only);
    sigaddset(&only, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
}

/* It goes on when the shell continues the job, which sends SIGCONT, too. */
static void stop(void)
{
    give();
    raise(SIGSTOP);
    take();
}

static enum terminal_event answer(int number)
{
    if (number == SIGINT)
        return TERMINAL_END;
    if (number == SIGTSTP)
        stop();
    else if (number == SIGCONT)
        take(); /* the shell may have set it otherwise */
    else if (number != SIGWINCH)
        end_by(number);
    return TERMINAL_CHANGED;
}

/* ---- keys ---- */

/* Of a sequence: its last character, and the number before it. */
static int key_of(char last, int number)
{
    static const struct {
        char last;
        int number;
        enum terminal_event key;
    } keys[] = {
        {'A', 0, TERMINAL_KEY_UP},        {'B', 0, TERMINAL_KEY_DOWN}, {'H', 0, TERMINAL_KEY_HOME},
        {'F', 0, TERMINAL_KEY_END},       {'~', 1, TERMINAL_KEY_HOME}, {'~', 4, TERMINAL_KEY_END},
        {'~', 5, TERMINAL_KEY_PAGE_UP},   {'~', 7, TERMINAL_KEY_HOME}, {'~', 8, TERMINAL_KEY_END},
        {'~', 6, TERMINAL_KEY_PAGE_DOWN},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(keys); i++)
        if (keys[i].last == last && (last != '~' || keys[i].number == number))
            return keys[i].key;
    return TERMINAL_TIMEOUT;
}

/* Takes one byte more; a sequence may come in several pieces.  TERMINAL_TIMEOUT: no key yet. */
static int take_byte(char byte)
{
    static enum { NONE, ESCAPED, IN_SEQUENCE } state;
    static int number;

    if (state == IN_SEQUENCE && (byte < 0x40 || byte == 0x7f)) {
        number = byte >= '0' && byte <= '9' ? number % 100 * 10 + byte - '0' : number;
        return TERMINAL_TIMEOUT;
    }
    if (state == IN_SEQUENCE) {
        state = NONE;
        return key_of(byte, number);
    }
    number = 0;
    if (state == ESCAPED && (byte == '[' || byte == 'O')) {
        state = IN_SEQUENCE;
        return TERMINAL_TIMEOUT;
    }
    state = byte == '\033' ? ESCAPED : NONE;
    return state == ESCAPED ? TERMINAL_TIMEOUT : TERMINAL_KEY + (unsigned char)byte;
}

/* TERMINAL_END when nobody will press any more. */
static int read_key(void)
{
    char byte;
    ssize_t length;
    int key = TERMINAL_TIMEOUT;

    while (key == TERMINAL_TIMEOUT) {
        length = read(STDIN_FILENO, &byte, 1);
        if (length < 0 && errno != EAGAIN && errno != EINTR)
            return TERMINAL_END;
        if (length <= 0)
            break;
        key = take_byte(byte);
    }
    return key;
}

int terminal_wait(int timeout_ms)
{
    struct pollfd files[] = {{.fd = terminal.signals, .events = POLLIN},
                             {.fd = STDIN_FILENO, .events = POLLIN}};
    struct signalfd_siginfo info;

    if (poll(files, RS_ARRAY_LENGTH(files), timeout_ms) <= 0)
        return TERMINAL_TIMEOUT;
    if (read(terminal.signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        return answer((int)info.ssi_signo);
    if (files[1].revents & (POLLHUP | POLLERR | POLLNVAL))
        return TERMINAL_END;
    return files[1].revents ? read_key() : TERMINAL_TIMEOUT;
}
