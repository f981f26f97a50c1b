/* SPDX-License-Identifier: Apache-2.0 */
/* The table of blocks that are shared by CUDA IPC (src/ipc/table.h) as a model for Spin: every order in which
 * the steps of an exporter and of importers can follow each other, with deaths between any two of them.  One
 * access to the table, one fcntl and one call of the driver is one step.
 *
 * From export.c it has take_slot, give_slot, export_in_slot, end_slot, hold_slot, take_held_slot,
 * take_released, collect_one, make_descriptor, rs_export_forget and rs_export_forget_held; from table.c
 * rs_exporter_use, open_table, rs_exporter_lock and rs_exporter_leave; from import.c open_block,
 * receive_segment, close_block and leave_exporter.
 *
 * The exporter has a thread that allocates, exports and frees blocks and ends a context, and one that collects
 * held blocks.  An importer opens blocks in two contexts, each on a thread of its own.
 * One of three things may happen in a run, at any time: the exporter dies, the importer dies, a context ends.
 * There are two blocks where a context may end, and one else; the second context opens the first one only.
 * Blocks with an odd number lie in the context that ends.  The memory of all of them is sent, or is opened by
 * the driver's handle of its allocation.
 *
 * Left out: handles of the driver's own (RS_EXPORTED_NATIVE), a block that is opened more than once in one
 * context (`uses`), segments with several blocks, a generation that has gone through all numbers, a program
 * that closes our descriptor or frees a block while it exports it, and the moment for which the GPU works on
 * after its process is dead.
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   READ_BEFORE_LOCK     an importer reads the generation, and then locks
 *   ASKED_BEFORE_CLEAR   the exporter asks for the lock, and then clears the generation
 *   READ_ONCE            the generation is not read again after the rest of the slot
 *   NOT_LOCKED_AGAIN     nor after the memory was sent
 *   GENERATION_KEPT      the next block of a slot has the generation of the one before
 *   NONCE_UNREAD         the file that is found by the exporter's number is taken for its table
 *   UNLOCKED_FOR_ALL     closing a block unlocks its slot, though it is open in another context
 *   CLOSING_FORGOTTEN    or is being closed in another context, and waits for the work there
 *   UNLOCKED_IN_USE      the slot is unlocked before the work on the block has ended
 *   FREED_WHILE_OPEN     a held block is deallocated without a look whether it is still open
 *   CONTEXT_NOT_HELD     a context ends while a held block of it is deallocated
 *   HELD_LOST            the end of a context takes other contexts' held blocks off the list, too */

#define BLOCKS 2 /* numbered from 1; each has a handle */
#define SLOTS 2
#define MEMORY 2
#define OPENS 1 /* of each thread of an importer */
#define IMPORTERS 1
#define THREADS 2 /* of importers */
#define NONE 255
#define IMPORTER(thread) (thread / 2)

/* ---- the memory file ---- */

byte generation[SLOTS];
byte place[SLOTS]; /* offset_bytes and native: the block's allocation */

/* ---- the exporter ---- */

mtype = { EXPORT_FREE, EXPORT_LIVE, EXPORT_HELD };

bool export_lock;
mtype state[SLOTS] = EXPORT_FREE;
byte entry_generation[SLOTS];
byte entry_next[SLOTS]; /* a slot plus one; 0: none */
byte held[SLOTS];       /* the block that is to be deallocated */
byte used, first_free, first_held, last_held, held_count;
byte context_now = 1;       /* of odd blocks; of even ones it is 0 */
byte context_held = NONE;   /* rs_context_hold */
byte block_slot[BLOCKS + 1];       /* the handle: slot and generation */
byte block_generation[BLOCKS + 1]; /* 0: there is no handle yet */
byte block_context[BLOCKS + 1];

/* ---- an importer, all its threads ---- */

bool import_lock[IMPORTERS];
byte file[IMPORTERS]; /* 0: the table is not open, 1: it is, 2: that is a later process's */
byte file_uses[IMPORTERS];
byte blocks[THREADS]; /* the block that is in the list of opened ones; 0: none */
byte closing[THREADS]; /* or in the list of those that are being closed */

/* ---- what the kernel and the driver know ---- */

bool locked[IMPORTERS * SLOTS];
bool exporter_alive = true;
bool importer_alive[IMPORTERS] = true;
byte memory[MEMORY]; /* the block that lies here; 0: none */
byte where[BLOCKS + 1];
bool ended[BLOCKS + 1]; /* with its context, or with the exporter */
byte in_use[THREADS];   /* the block of which the GPU may use the memory, in this context */
mtype = { EXPORTER_DIES, IMPORTER_DIES, CONTEXT_ENDS };
mtype may; /* at any time */
bool is_sent;           /* the memory is, and has no handle of the driver's */
bool is_done[THREADS];
bool program_is_done;

#define LOCKED(i, s) locked[(i) * SLOTS + (s)]

/* ---- slots; the caller holds the lock ---- */

byte walk, walked, count, s0;

/* Each slot that was ever used is free and in that list, or live, or held and in that one. */
inline check_slots()
{
    walked = 0;
    walk = first_free;
    do
    :: walk != 0 ->
        assert(state[walk - 1] == EXPORT_FREE);
        walked++;
        assert(walked <= SLOTS);
        walk = entry_next[walk - 1]
    :: else -> break
    od;
    walk = first_held;
    count = 0;
    do
    :: walk != 0 ->
        assert(state[walk - 1] == EXPORT_HELD);
        walked++;
        count++;
        assert(walked <= SLOTS);
        walk = entry_next[walk - 1]
    :: else -> break
    od;
    assert(count == held_count);
    s0 = 0;
    do
    :: s0 < used ->
        walked = walked + (state[s0] == EXPORT_LIVE -> 1 : 0);
        s0++
    :: else -> break
    od;
    assert(walked == used); /* else a slot has leaked, or is in two places */
    s0 = 0;
    count = 0;
    walked = 0
}

inline take_slot(number)
{
    if
    :: first_free != 0 -> number = first_free; first_free = entry_next[number - 1]; entry_next[number - 1] = 0
    :: first_free == 0 && used < SLOTS -> used++; number = used
    :: else -> number = 0
    fi;
    assert(number == 0 || state[number - 1] == EXPORT_FREE)
}

inline give_slot(number)
{
    assert(state[number - 1] != EXPORT_FREE);
    state[number - 1] = EXPORT_FREE;
    held[number - 1] = 0;
    entry_next[number - 1] = first_free;
    first_free = number
}

inline hold_slot(number, which)
{
    state[number - 1] = EXPORT_HELD;
    held[number - 1] = which;
    entry_next[number - 1] = 0;
    if
    :: last_held != 0 -> entry_next[last_held - 1] = number
    :: else -> first_held = number
    fi;
    last_held = number;
    held_count++
}

inline take_held_slot(number)
{
    number = first_held;
    if
    :: number != 0 ->
        first_held = entry_next[number - 1];
        entry_next[number - 1] = 0;
        if
        :: first_held == 0 -> last_held = 0
        :: else
        fi;
        held_count--
    :: else
    fi
}

#define IS_OPEN_ELSEWHERE(number) LOCKED(0, (number) - 1)

/* ---- memory ---- */

#define IS_USED(b) (in_use[0] == (b) || in_use[1] == (b))

inline deallocate(b)
{
    d_step {
        assert(!ended[b]);             /* the context is gone, and its memory */
        assert(memory[where[b]] == b); /* else it was freed before */
        assert(!IS_USED(b));           /* else it is used after the free */
        memory[where[b]] = 0
    }
}

/* ---- export, free, end of a context ----
 *
 * What another process cannot see, and the lock keeps from other threads, is one step. */

inline export_in_slot(b)
{
    d_step {
        !export_lock ->
        take_slot(number);
        if
        :: number != 0 ->
            export_lock = true;
            state[number - 1] = EXPORT_LIVE;
#ifdef GENERATION_KEPT
            entry_generation[number - 1] = 1;
#else
            entry_generation[number - 1]++;
#endif
            place[number - 1] = b
        :: else /* refuse_export */
        fi
    }
    if
    :: d_step {
           number != 0 ->
           generation[number - 1] = entry_generation[number - 1];
           block_slot[b] = number - 1;
           block_generation[b] = entry_generation[number - 1]; /* write_handle */
           exported[b - 1] = number;
           number = 0;
           check_slots();
           export_lock = false
       }
    :: else
    fi
}

/* rs_export_end, and then the free itself. */
inline free_block(b)
{
    if
    :: d_step {
           exported[b - 1] != 0 && !export_lock ->
           export_lock = true;
           number = exported[b - 1];
           exported[b - 1] = 0;
#ifdef ASKED_BEFORE_CLEAR
           is_open = IS_OPEN_ELSEWHERE(number)
#else
           generation[number - 1] = 0 /* close_slot */
#endif
       }
        d_step {
#ifdef ASKED_BEFORE_CLEAR
            generation[number - 1] = 0;
#else
            is_open = IS_OPEN_ELSEWHERE(number);
#endif
            if
            :: is_open -> hold_slot(number, b)
            :: else -> give_slot(number)
            fi;
            number = 0;
            check_slots();
            export_lock = false
        }
    :: exported[b - 1] == 0
    fi;
    if
    :: is_open -> is_open = false
    :: else -> deallocate(b)
    fi
}

/* The end of context 1: the driver frees its memory, rs_export_forget its live blocks' slots,
 * rs_export_forget_held its held ones'. */
inline end_context()
{
    d_step {
#ifdef CONTEXT_NOT_HELD
        context_now == 1 ->
#else
        context_now == 1 && context_held != 1 ->
#endif
        context_now = 2;
        b0 = 1;
        do
        :: b0 <= BLOCKS ->
            if
            :: block_context[b0] == 1 && memory[where[b0]] == b0 -> memory[where[b0]] = 0; ended[b0] = true
            :: else
            fi;
            b0++
        :: else -> b0 = 1; break
        od
    }
    do
    :: b0 <= BLOCKS && !(alive[b0 - 1] && block_context[b0] == 1) -> b0++
    :: d_step {
           b0 <= BLOCKS && alive[b0 - 1] && block_context[b0] == 1 && !export_lock ->
           alive[b0 - 1] = false;
           number = exported[b0 - 1];
           exported[b0 - 1] = 0;
           if
           :: number != 0 ->
               generation[number - 1] = 0;
               give_slot(number);
               check_slots();
               number = 0
           :: else
           fi;
           b0++
       }
    :: b0 > BLOCKS -> break
    od;
    atomic {
        !export_lock ->
        b0 = 0;
        looks = held_count;
        do
        :: looks > 0 ->
            take_held_slot(number);
            if
            :: block_context[held[number - 1]] != 1 ->
#ifdef HELD_LOST
                skip
#else
                hold_slot(number, held[number - 1])
#endif
            :: else -> give_slot(number)
            fi;
            looks--
        :: else -> break
        od;
        number = 0;
        check_slots()
    }
}

#define MADE (may == CONTEXT_ENDS -> BLOCKS : 1)

/* The thread that allocates, exports and frees. */
proctype program()
{
    bool alive[BLOCKS]; /* the program has the block */
    byte exported[BLOCKS]; /* slot plus one, in the block's record */
    byte b, b0, number, looks;
    bool is_open;

    {
        do
        :: atomic {
               b < MADE && (memory[0] == 0 || memory[1] == 0) ->
               b++;
               where[b] = (memory[0] == 0 -> 0 : 1);
               memory[where[b]] = b;
               block_context[b] = (b % 2 -> context_now : 0);
               alive[b - 1] = true
           }
            export_in_slot(b)
        :: atomic { b > 0 && alive[0] -> alive[0] = false; b0 = 1 }
            free_block(b0)
        :: atomic { b > 1 && alive[1] -> alive[1] = false; b0 = 2 }
            free_block(b0)
        :: may == CONTEXT_ENDS && context_now == 1 && b > 0 -> end_context()
        :: atomic { b == MADE && !alive[0] && !alive[1] -> b0 = 0; program_is_done = true; break }
        od;
end:
        false
    } unless {
        !exporter_alive
    }
}

/* ---- rs_export_collect ---- */

inline collect_one()
{
    atomic {
        !export_lock ->
        c_context = (first_held == 0 -> NONE : block_context[held[first_held - 1]]) /* oldest_stack */
    }
    d_step {
        is_context_held = c_context != NONE && (c_context != 1 || context_now == 1); /* rs_context_hold */
        if
        :: is_context_held -> context_held = c_context
        :: else
        fi
    }
    d_step { /* take_released */
        !export_lock ->
        take_held_slot(c_number);
        if
        :: c_number != 0 ->
            c_block = held[c_number - 1];
#ifdef FREED_WHILE_OPEN
            if
            :: is_context_held && block_context[c_block] == c_context -> give_slot(c_number)
#else
            if
            :: is_context_held && block_context[c_block] == c_context && !IS_OPEN_ELSEWHERE(c_number) ->
                give_slot(c_number)
#endif
            :: else -> hold_slot(c_number, c_block); c_block = 0
            fi
        :: else
        fi;
        c_number = 0;
        c_context = 0;
        check_slots()
    }
    if
    :: c_block != 0 -> deallocate(c_block) /* deallocate_held */
    :: else
    fi;
    d_step { context_held = NONE; c_block = 0; is_context_held = false }
}

#define ALL_DONE (program_is_done && is_done[0] && is_done[1])

proctype collector()
{
    byte c_context, c_number, c_block, looks;
    bool is_context_held;

    {
        do
        :: !ALL_DONE && held_count > 0 -> collect_one()
        :: ALL_DONE -> break
        od;
        /* Nothing is open any more, and the program has freed all. */
        do
        :: looks < SLOTS && held_count > 0 -> collect_one(); looks++
        :: else -> break
        od;
        assert(memory[0] == 0 && memory[1] == 0);
        assert(state[0] == EXPORT_FREE && state[1] == EXPORT_FREE);
end:
        false
    } unless {
        !exporter_alive
    }
}

/* ---- an importer ---- */

#define FILE file[IMPORTER(me)]

/* The slot as it is in the file that is open; a later process has a block of its own there. */
inline read_generation()
{
    found = (FILE == 2 -> 1 : generation[block_slot[b]])
}

inline set_lock()
{
    d_step {
        if
        :: FILE == 1 -> LOCKED(IMPORTER(me), block_slot[b]) = true
        :: else
        fi
    }
}

inline rs_exporter_lock()
{
#ifdef READ_BEFORE_LOCK
    read_generation();
#else
    set_lock();
    read_generation();
#endif
    at = place[block_slot[b]];
#ifdef READ_BEFORE_LOCK
    set_lock();
#elif !defined(READ_ONCE)
    if
    :: found == block_generation[b] -> read_generation()
    :: else
    fi;
#endif
    is_found = found == block_generation[b]
}

/* The block is not open in another context, and in the same slot. */
#ifdef UNLOCKED_FOR_ALL
#define IS_LAST true
#else
#define OTHER (me == 0 -> 1 : 0)
#define HAS_SLOT(of) (of != 0 && block_slot[of] == block_slot[b])
#ifdef CLOSING_FORGOTTEN
#define IS_LAST (!HAS_SLOT(blocks[OTHER]))
#else
#define IS_LAST (!HAS_SLOT(blocks[OTHER]) && !HAS_SLOT(closing[OTHER]))
#endif
#endif

inline leave_exporter()
{
    atomic {
        if
        :: IS_LAST -> LOCKED(IMPORTER(me), block_slot[b]) = false
        :: else
        fi;
        file_uses[IMPORTER(me)]--; /* rs_exporter_leave */
        if
        :: file_uses[IMPORTER(me)] == 0 ->
            FILE = 0;
            LOCKED(IMPORTER(me), 0) = false;
            LOCKED(IMPORTER(me), 1) = false
        :: else
        fi
    }
}

/* The driver opens its handle, which names an allocation for the whole life of that. */
inline open_native()
{
    d_step {
        got = (FILE == 2 -> NONE : (exporter_alive && memory[where[at]] == at -> at : 0))
    }
}

/* make_descriptor looks at the slot under the exporter's lock, and exports the memory after it. */
inline receive_segment()
{
    atomic {
        !exporter_alive || !export_lock ->
        address = (exporter_alive && FILE == 1 && generation[block_slot[b]] == block_generation[b] ->
                   where[place[block_slot[b]]] : NONE)
    }
    d_step {
        got = 0;
        if
        :: FILE == 2 -> got = NONE
        :: FILE == 1 && exporter_alive && address != NONE -> got = memory[address]
        :: else
        fi
    }
#ifndef NOT_LOCKED_AGAIN
    if
    :: got != 0 ->
        rs_exporter_lock();
        d_step {
            if
            :: !is_found -> got = 0
            :: else
            fi
        }
    :: else
    fi
#endif
}

/* rs_exporter_use, with the file that /proc has by now for the exporter's number. */
inline rs_exporter_use()
{
    if
    :: d_step {
           is_found ->
           if
           :: FILE == 0 ->
#ifdef NONCE_UNREAD
               FILE = (exporter_alive -> 1 : 2)
#else
               FILE = (exporter_alive -> 1 : 0)
#endif
           :: else
           fi;
           is_found = FILE != 0;
           file_uses[IMPORTER(me)] = file_uses[IMPORTER(me)] + (is_found -> 1 : 0)
       }
    :: else
    fi
}

inline open_block()
{
    d_step { /* with rs_exporter_is_running */
        !import_lock[IMPORTER(me)] ->
        import_lock[IMPORTER(me)] = true;
        is_found = exporter_alive
    }
    rs_exporter_use();
    if
    :: is_found ->
        rs_exporter_lock();
        if
        :: is_found && is_sent -> receive_segment()
        :: is_found && !is_sent -> open_native()
        :: else
        fi;
        if
        :: d_step {
               got != 0 ->
               assert(got == b); /* else it is another block's memory */
               blocks[me] = b;   /* enter_import */
               in_use[me] = b
           }
        :: else -> leave_exporter()
        fi
    :: else
    fi;
    d_step { at = 0; address = 0; found = 0; is_found = false; import_lock[IMPORTER(me)] = false }
}

inline close_block()
{
    d_step { !import_lock[IMPORTER(me)] -> blocks[me] = 0; closing[me] = b }
#ifdef UNLOCKED_IN_USE
    atomic { !import_lock[IMPORTER(me)] -> closing[me] = 0; leave_exporter() }
    in_use[me] = 0
#else
    in_use[me] = 0; /* rs_sentinel_wait, and leave_segment */
    atomic { !import_lock[IMPORTER(me)] -> closing[me] = 0; leave_exporter() }
#endif
}

proctype importer(byte me)
{
    byte b, opens, at, address, found, got;
    bool is_found;

    {
        do
        :: atomic {
               opens < OPENS ->
               if
               :: block_generation[1] != 0 -> b = 1
               :: me == 0 && block_generation[2] != 0 -> b = 2
               :: else -> b = 0
               fi;
               opens++
           }
            if
            :: b != 0 -> open_block()
            :: else
            fi;
            if
            :: got != 0 -> got = 0; close_block()
            :: else
            fi;
            b = 0
        :: d_step { opens == OPENS -> is_done[me] = true }
            break
        od;
end:
        false
    } unless {
        !importer_alive[IMPORTER(me)]
    }
}

/* ---- deaths ---- */

active proctype kernel()
{
    byte i;

    atomic {
        if
        :: is_sent = true
        :: is_sent = false
        fi;
        if
        :: may = EXPORTER_DIES
        :: may = IMPORTER_DIES
        :: may = CONTEXT_ENDS
        fi;
        run program();
        run collector();
        for (i : 0 .. THREADS - 1) {
            run importer(i)
        }
        i = 0
    }
end:
    do
    :: atomic { may == EXPORTER_DIES && exporter_alive -> exporter_alive = false }
    :: d_step {
           may == IMPORTER_DIES && importer_alive[0] ->
           importer_alive[0] = false;
           LOCKED(0, 0) = false;
           LOCKED(0, 1) = false;
           in_use[0] = 0;
           in_use[1] = 0;
           is_done[0] = true;
           is_done[1] = true
       }
    od
}
