/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/screen.h"

#include "base/check.h"
#include "base/log.h"
#include "tool/tool.h"

#include <errno.h>
#include <fnmatch.h>
#include <langinfo.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum { PIECE_BYTES = 4096 };

/* ---- text in columns ---- */

/* Returns the columns of the character at `text`, and its length in *bytes; 0 bytes if it is no
 * character of the locale. */
static int width_of(const char *text, size_t *bytes)
{
    mbstate_t state;
    wchar_t wide;
    size_t count;

    memset(&state, 0, sizeof(state));
    count = mbrtowc(&wide, text, strlen(text), &state);
    *bytes = 0;
    if (count == 0 || count > MB_LEN_MAX || wcwidth(wide) < 0)
        return 1;
    *bytes = count;
    return wcwidth(wide);
}

int screen_fit(char *to, size_t room, const char *text, int columns)
{
    char *end = to + room - 1, *last = to; /* where the character in the last column begins */
    int used = 0, used_before = 0;

    while (*text) {
        size_t bytes;
        int width = width_of(text, &bytes);
        if (used + width > columns || to + (bytes ? bytes : 1) > end)
            break;
        if (width > 0) {
            last = to;
            used_before = used;
        }
        if (bytes)
            memcpy(to, text, bytes);
        else
            *to = '?';
        to += bytes ? bytes : 1;
        text += bytes ? bytes : 1;
        used += width;
    }
    if (*text && used > 0) {
        to = last;
        *to++ = '~';
        used = used_before + 1;
    }
    *to = '\0';
    return used;
}

void screen_align(char *to, size_t room, const char *text, int width, bool is_left)
{
    char fitted[PIECE_BYTES];
    int blanks = width - screen_fit(fitted, rs_min(sizeof(fitted), room), text, width);

    snprintf(to, room, "%*s%s%*s", is_left ? 0 : blanks, "", fitted, is_left ? blanks : 0, "");
}

/* ---- frames ---- */

static const char *const styles[] = {
    [FRAME_PLAIN] = "",        [FRAME_TITLE] = "\033[7m", [FRAME_CHART] = "\033[36m",
    [FRAME_FAINT] = "\033[2m", [FRAME_WARN] = "\033[33m", [FRAME_ALARM] = "\033[1;31m",
};

static void append_piece(struct frame *frame, const char *text)
{
    size_t bytes = strlen(text);

    if (frame->length + bytes >= frame->room) {
        frame->room = 2 * (frame->length + bytes) + PIECE_BYTES;
        frame->text = tool_grow(frame->text, frame->room);
    }
    memcpy(frame->text + frame->length, text, bytes);
    frame->length += bytes;
}

int frame_columns_left(const struct frame *frame)
{
    return frame->columns - frame->used_columns;
}

int frame_lines_left(const struct frame *frame)
{
    return frame->lines ? frame->lines - frame->used_lines : INT_MAX;
}

/* True when the frame shows this style; reverse video also works on terminals without colours. */
static bool is_styled(const struct frame *frame, enum frame_style style)
{
    return frame->is_screen && (style == FRAME_TITLE || (frame->has_colors && style));
}

void frame_put(struct frame *frame, enum frame_style style, const char *format, ...)
{
    char text[PIECE_BYTES], fitted[PIECE_BYTES];
    va_list arguments;

    if (frame_columns_left(frame) <= 0)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    frame->used_columns += screen_fit(fitted, sizeof(fitted), text, frame_columns_left(frame));
    if (is_styled(frame, style))
        append_piece(frame, styles[style]);
    append_piece(frame, fitted);
    if (is_styled(frame, style))
        append_piece(frame, "\033[0m");
}

void frame_end_line(struct frame *frame)
{
    bool is_last = frame_lines_left(frame) == 1;

    while (!frame->is_screen && frame->length > 0 && frame->text[frame->length - 1] == ' ')
        frame->length--;
    if (frame->is_screen && frame_columns_left(frame) > 0)
        append_piece(frame, "\033[K");
    if (!frame->is_screen || !is_last)
        append_piece(frame, frame->is_screen ? "\r\n" : "\n");
    frame->used_columns = 0;
    frame->used_lines++;
}

/* Terminals that know these sequences show the new picture only when it is complete. */
static const char begin_picture[] = "\033[?2026h\033[H", end_picture[] = "\033[?2026l";

int frame_write(struct frame *frame)
{
    int failed = 0;

    if (frame->is_screen && frame_lines_left(frame) > 0)
        append_piece(frame, "\033[J");
    if (frame->is_screen) {
        append_piece(frame, end_picture);
        failed = rs_write_all(STDOUT_FILENO, begin_picture, strlen(begin_picture));
    }
    if (!failed)
        failed = rs_write_all(STDOUT_FILENO, frame->text, frame->length);
    free(frame->text);
    frame->text = NULL;
    frame->length = frame->room = 0;
    return failed;
}

/* ---- charts ---- */

enum { LEVELS = 9 };

static const char letters[] = " .:-=+*#@";

/* Returns the height of a value in the chart.  Only 0 has level 0, so that the smallest value can
 * be seen. */
static int level_of(uint64_t value, uint64_t whole)
{
    double part = (double)rs_min(value, whole) / (double)whole;

    return value == 0 ? 0 : 1 + (int)(part * (LEVELS - 2) + 0.5);
}

void frame_put_chart(struct frame *frame, const uint64_t *values, size_t count, uint64_t whole,
                     int columns, bool has_blocks)
{
    size_t shown = rs_min(count, columns > 0 ? (size_t)columns : 0);
    char text[PIECE_BYTES];
    uint64_t largest = 1;
    int length;

    for (size_t i = count - shown; i < count; i++)
        largest = rs_max(largest, values[i]);
    length = snprintf(text, sizeof(text), "%*s", columns - (int)shown, "");
    for (size_t i = count - shown; i < count && length < PIECE_BYTES - 4; i++) {
        int level = level_of(values[i], whole ? whole : largest);
        bool is_block = has_blocks && level > 0; /* the characters from U+2580 on */
        length += sprintf(text + length, is_block ? "\xe2\x96%c" : "%c",
                          is_block ? 0x80 + level : letters[level]);
    }
    frame_put(frame, FRAME_CHART, "%s", text);
}

void frame_put_bar(struct frame *frame, uint64_t part, uint64_t whole, int columns)
{
    size_t room = rs_min((size_t)columns, PIECE_BYTES - 1);
    int full = whole ? (int)((double)rs_min(part, whole) / (double)whole * (double)room + 0.5) : 0;
    char text[PIECE_BYTES];

    memset(text, ' ', room);
    memset(text, '|', (size_t)full);
    text[room] = '\0';
    frame_put(frame, FRAME_CHART, "%s", text);
}

/* ---- the terminal ---- */

/* take_screen switches to a second screen, without a cursor and without wrapping of long lines;
 * give_screen switches back. */
static const char take_screen[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
static const char give_screen[] = "\033[0m\033[?7h\033[?25h\033[?1049l";

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

static struct {
    struct termios before;
    sigset_t mask_before;
    int signals; /* the descriptor of signalfd; -1: none */
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
    static const char without[] = "@(|dumb*|vt[1-5]*|*-mono*|*-m)";
    const char *no_color = getenv("NO_COLOR"), *name = getenv("TERM");

    return name && !(no_color && *no_color) && fnmatch(without, name, FNM_EXTMATCH) != 0;
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

static void take_terminal(void)
{
    struct termios raw = terminal.before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    write_text(take_screen);
    terminal.is_taken = true;
}

static void give_terminal(void)
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
    take_terminal();
    return true;
}

void terminal_end(void)
{
    give_terminal();
    if (terminal.signals < 0)
        return;
    close(terminal.signals);
    terminal.signals = -1;
    sigprocmask(SIG_SETMASK, &terminal.mask_before, NULL);
}

/* ---- signals ---- */

/* Stops this process.  It continues when the shell continues the job, by SIGCONT. */
static void stop(void)
{
    give_terminal();
    raise(SIGSTOP);
    take_terminal();
}

static enum terminal_event answer_signal(int number)
{
    if (number == SIGINT)
        return TERMINAL_END;
    if (number == SIGTSTP)
        stop();
    else if (number == SIGCONT)
        take_terminal(); /* the shell may have changed the terminal's modes */
    else if (number != SIGWINCH) {
        give_terminal();
        tool_end_by(number); /* the parent of this process then sees that the signal ended it */
    }
    return TERMINAL_CHANGED;
}

/* ---- keys ---- */

/* Returns the key whose escape sequence has that number and ends with that character;
 * TERMINAL_TIMEOUT if there is no such key. */
static int key_of_sequence(char last, int number)
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

/* Takes one byte of input, and returns the key that it completes; an escape sequence may arrive in
 * several pieces.  Returns TERMINAL_TIMEOUT if no known key is complete yet. */
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
        return key_of_sequence(byte, number);
    }
    number = 0;
    if (state == ESCAPED && (byte == '[' || byte == 'O')) {
        state = IN_SEQUENCE;
        return TERMINAL_TIMEOUT;
    }
    state = byte == '\033' ? ESCAPED : NONE;
    return state == ESCAPED ? TERMINAL_TIMEOUT : TERMINAL_KEY + (unsigned char)byte;
}

/* Reads a key.  Returns TERMINAL_END when there will be no more input. */
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
        return answer_signal((int)info.ssi_signo);
    if (files[1].revents & (POLLHUP | POLLERR | POLLNVAL))
        return TERMINAL_END;
    return files[1].revents ? read_key() : TERMINAL_TIMEOUT;
}
