/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread, read from the interpreter's own structures, as profilers
 * do: with or without Python's lock, in some ten nanoseconds for each frame.
 *
 * A thread's frames do not change while it is inside a function that Python called, and they keep
 * their code objects, with names and tables of lines, alive. */
#pragma once

#include "trace/line.h"

/* Where things lie in the structures of one version: bytes from the beginning of each. */
struct rs_python_layout {
    unsigned minor;       /* of version 3.MINOR */
    unsigned state_frame; /* of a thread's state: its innermost frame */
    int holder_frame;     /* not negative: of what that points to instead, the frame */
    unsigned previous;    /* of a frame: the next outer one */
    unsigned code;        /* its code object */
    unsigned instruction; /* where it is in the code */
    int owner;            /* who made it, one byte; negative: there is none */
    unsigned filename, name, firstlineno, linetable; /* of a code object */
    unsigned first_instruction;     /* 0: the place in the code is a number, not an address */
    unsigned instruction_bytes;     /* of one unit of that number */
    unsigned ascii_text, wide_text; /* of a string: its characters */
};

struct rs_python_chain {
    const struct rs_python_layout *layout;
    const void *code_type, *text_type;                /* PyCode_Type, PyUnicode_Type */
    int (*line_number)(void *code, int offset_bytes); /* PyCode_Addr2Line */
};

/* Returns the layout of a version, or NULL. */
const struct rs_python_layout *rs_python_layout_of(unsigned minor);

enum rs_python_reading {
    RS_PYTHON_TRUSTED, /* as the program's own memory */
    RS_PYTHON_CAREFUL, /* by a system call, which fails where there is no memory: until the layout
                          has proved right */
    RS_PYTHON_DUMPED,  /* the same; and lines are as faulthandler writes them: other characters than
                          those of ASCII by their numbers, 500 characters of a name, cut off at
                          RS_LINE_BYTES_MAX */
};

enum {
    RS_PYTHON_STRANGE = -1, /* the structures are not as expected */
    RS_PYTHON_UNTOLD = -2,  /* they may be, but a line is too long, or memory is short */
};

/* Writes the lines of at most `max` frames of the thread's state, innermost first.  Returns how
 * many, or RS_PYTHON_STRANGE or RS_PYTHON_UNTOLD. */
int rs_python_chain_read(const struct rs_python_chain *chain, const void *state,
                         enum rs_python_reading reading, const struct rs_line **lines,
                         unsigned max);
