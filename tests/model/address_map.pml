/* SPDX-License-Identifier: Apache-2.0 */
/* The map of blocks (src/context/block.h) and the end of a context (src/context/end.h), as a model for Spin:
 * every order in which the steps of the call that may end a context can follow those of frees, allocations and
 * look-ups by other threads.  One operation on a map, and one access to a record or to the state of a context,
 * is one step.
 *
 * From context/end.c it has rs_ending_begin, rs_ending_finish, drop_if_ended, finish_call, drop, update_ending,
 * set_ending, rs_context_find, rs_context_give_back_ended, rs_context_serves and rs_context_has_memory; from
 * context/table.c rs_context_ending_enter, rs_context_ending_leave, rs_context_hold and rs_context_release;
 * from context/current.c look_up, create and note_found; from context/block.h and block.c rs_block_claim,
 * rs_block_take_checked, rs_block_take_doubted, rs_block_publish, enter_new, replaced, lose, find_live and
 * rs_block_forget_all; from resource/block.c rs_block_record_take, rs_block_record_give and rs_block_hide; from
 * resource/segment.c rs_segment_find, rs_segment_remove and rs_segment_remove_all; from hook/allocation.c
 * free_kind and free_otherwise; from ledger/account.c rs_account_lose.
 *
 * One thread calls what may end the old context, which has a block: the context is destroyed, or the driver
 * refuses that; or a reference to it is released, which is the last one, or is not.  Two threads, the users,
 * allocate, look up and free, in the new context if the old one ends, and else in the old one.  The new context
 * is another one that was there before, or is made when the driver has ended the old one, and has its handle.
 * A user may also have memory of the driver's own, which it frees by cuMemFree.  Instead of the second user
 * there may be a trim, which gives back memory that the old context has and the program does not use.  The
 * driver gives an address to the new context as soon as the old one has ended.  One user may get a block of two
 * addresses, of which the second is that of the old block.  The records of blocks are those of `reuse`, and
 * stay in the map after a free, or they leave it with the free.
 *
 * A user does what CUDA allows: it does not use a context, or a block of it, that another thread's call ends.
 * So each free of a living block must succeed (while a call destroys its context and will be refused, it may be
 * refused too, but the driver must not get it), each look-up must find the block around the address and no
 * other, and memory of the driver's own must never be taken for a block.  The driver must get no memory back
 * twice, nor any of a context that has ended.  In the end nothing is left: no entry, no record, no memory, no
 * count and no charge.
 *
 * In a run of its own, a writer changes a shard of the map itself, and a thread looks a start up in it
 * (rs_address_map_find, table_close, replace_locked; base/address_map.c), one access to a slot a step.
 *
 * Left out: the growth of a table, the bitmap of starts, and the order of memory: each step is seen at once by
 * all.  Also green contexts, faulty ones, drivers without cuCtxGetId, exports by IPC, host memory that runs out,
 * the reuse of a context's own record after 64 others, and frees, allocations and second frees that are wrong
 * since another thread ends the context, or has freed the block.
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   COMPARED_AFTER_TAKING  a free marks the record that it found as taken, and then compares its address
 *   COMPARED_BEFORE_STACK  or it compares the address, and then reads which context the block has
 *   ALIVE_UNREAD           or it does not read whether that context is alive
 *   RECORD_NOT_COMPARED    a look-up by an address inside a block does not compare the record's address
 *   LOOKED_BEFORE_REMOVE   the end of a context looks whose block an entry is, and then removes the entry
 *   REMOVED_BY_ADDRESS     an entry is removed whosever it is
 *   REPLACED_KEPT          a block whose entry is replaced stays counted
 *   ALIVE_AFTER_CALL       the context is taken out of service when the driver has ended it
 *   DOUBT_NOT_ASKED        the driver is not asked whether a context is there of which a reference is released
 *   SURELY_FORWARDED       memory of a context that is being destroyed counts as the driver's
 *   ENDING_READ_TWICE      a thread that asks for such memory reads twice how near its end the context is
 *   GENERATION_KEPT        threads go on with the context that they have cached
 *   ID_NOT_COMPARED        a handle stands for the old context as long as that is in the table
 *   DROPPED_UNSEEN         the call that ended a context drops it though a look-up has done so
 *   SEGMENT_AFTER_FREE     a segment is removed when the driver has its memory
 *   HOLDS_NOT_AWAITED      a context ends while a trim gives memory of it back
 *   HELD_WHILE_ENDING      a trim begins although a call is ending the context
 *   ODD_SEQUENCE_READ      a look-up in the map begins while the shard changes
 *   SEQUENCE_READ_ONCE     or does not look whether the shard has changed meanwhile */

#define ADDRESSES 3
#define RECORDS 4 /* numbered from 1; 0: none */
#define USERS 2
#define OLD 1 /* the context that a call may end */
#define NEW 2
#define BY_OLD 3 /* who has a driver allocation: a user's number plus one, or these */
#define BY_IDLE 4

mtype = { HIDDEN, LIVE, TAKEN };                /* enum rs_block_state */
mtype = { NOT, MAYBE, SURELY, OVER };           /* enum rs_context_ending */
mtype = { DESTROYED, REFUSED, RELEASED, LEFT }; /* what the call does; LEFT: it leaves a reference */
mtype = { INSIDE };                             /* it is about the steps inside the map */
mtype = { NOTHING, OURS, DRIVERS };             /* what a user has */
mtype how;
bool is_same_handle; /* the new context has the handle of the old one */
bool reuses;         /* records are made by `reuse`, and not by rs_block_enter */

#define IS_ENDED (how == DESTROYED || how == RELEASED)
#define IS_SURE (how == DESTROYED || how == REFUSED)
#define MINE (IS_ENDED -> NEW : OLD) /* the context of the users */

/* ---- the driver ---- */

bool exists[3];
byte memory_context[ADDRESSES]; /* 0: free */
byte memory_start[ADDRESSES];
byte memory_by[ADDRESSES];

inline driver_free(at, context, by)
{
    assert(memory_context[at] == context && exists[context]); /* else the context is gone */
    assert(memory_start[at] == at && memory_by[at] == by);    /* else it was freed before */
    if
    :: at == 0 && memory_context[1] != 0 && memory_start[1] == 0 -> memory_context[1] = 0; memory_by[1] = 0
    :: else
    fi;
    memory_context[at] = 0;
    memory_start[at] = 0;
    memory_by[at] = 0
}

#define IS_FREE(at) (memory_context[at] == 0)

/* Each user gets the address of the old block, or another; size 0: neither is free. */
inline driver_allocate(context, by)
{
    if
    :: IS_FREE(1) -> at = 1; size = 1
    :: by == 1 && IS_FREE(0) && IS_FREE(1) -> at = 0; size = 2
    :: by == 2 && IS_FREE(2) -> at = 2; size = 1
    :: !IS_FREE(1) && !(by == 2 && IS_FREE(2)) -> size = 0
    fi;
    if
    :: size > 0 ->
        assert(exists[context]);
        memory_context[at] = context;
        memory_start[at] = at;
        memory_by[at] = by;
        if
        :: size == 2 -> memory_context[1] = context; memory_start[1] = 0; memory_by[1] = by
        :: else
        fi
    :: else
    fi
}

inline driver_end()
{
    d_step {
        exists[OLD] = false;
        i = 0;
        do
        :: i < ADDRESSES ->
            if
            :: memory_context[i] == OLD -> memory_context[i] = 0; memory_start[i] = 0; memory_by[i] = 0
            :: else
            fi;
            i++
        :: else -> i = 0; break
        od
    }
}

/* ---- contexts ---- */

bool contexts_lock;
bool alive[3];
mtype ending[3] = NOT;
byte entry;          /* the context of the old one's handle; 0: none */
byte ends, releases; /* of the old context */
byte endings, context_endings, holds;
byte generation;
byte ended; /* the list of dropped contexts whose memory is to be given back */
bool is_dropped;

#define lock() atomic { !contexts_lock -> contexts_lock = true }

/* ---- blocks ---- */

mtype state[RECORDS + 1] = HIDDEN;
byte address[RECORDS + 1];
byte stack[RECORDS + 1];   /* that of the context */
byte size_of[RECORDS + 1];
byte by_of[RECORDS + 1];
bool is_used[RECORDS + 1]; /* it is in no slab */
byte map[ADDRESSES];       /* rs_blocks: the record */
byte map_size[ADDRESSES];
byte segment[ADDRESSES];   /* the context; 0: none */
byte segment_size[ADDRESSES];
byte kept[3]; /* the block that `reuse` has for the next request, of each context */
byte live;    /* rs_block_count_entered, rs_block_count_left */
byte charged[3];
bool has_idle; /* the leaf of the old context has memory without a block */

/* rs_address_map_remove */
inline map_remove(start, record)
{
    if
#ifdef REMOVED_BY_ADDRESS
    :: true -> map[start] = 0; map_size[start] = 0
#else
    :: map[start] == record -> map[start] = 0; map_size[start] = 0
    :: else
#endif
    fi
}

/* rs_block_record_give; nobody sees what is done to the record when it has left the map. */
inline give_record(record)
{
    map_remove(address[record], record); /* rs_block_hide */
    assert(is_used[record]);             /* else it was given back twice */
    state[record] = HIDDEN;
    is_used[record] = false
}

inline segment_remove(start, context)
{
    d_step {
        if
        :: segment[start] == context -> segment[start] = 0; segment_size[start] = 0
        :: else
        fi
    }
}

/* The block has lost its entry; is_lost: false when a free has claimed the block. */
inline lose(record, is_lost)
{
    is_lost = state[record] == LIVE;
    if
    :: is_lost ->
        assert(stack[record] == OLD && !exists[OLD]); /* else a living block is lost */
        assert(is_used[record]);
        state[record] = HIDDEN;
        is_used[record] = false;
        live--
    :: else
    fi
}

/* ---- the end of a context ---- */

/* These are the locals of who has the contexts' lock. */
byte walk, walked;
bool is_walked_lost;

#ifdef LOOKED_BEFORE_REMOVE
#define IS_OF_OLD(record) true
#else
#define IS_OF_OLD(record) (stack[record] == OLD)
#endif

/* rs_block_forget_all, and rs_segment_remove_all */
inline forget_all()
{
    walk = ADDRESSES;
    do
    :: d_step { walk > 0 && map[walk - 1] == 0 -> walk-- }
    :: d_step { walk > 0 && map[walk - 1] != 0 -> walk--; walked = map[walk] }
        if
        :: stack[walked] == OLD ->
            if
            :: d_step { map[walk] == walked && IS_OF_OLD(walked) -> map[walk] = 0; map_size[walk] = 0 }
                d_step { lose(walked, is_walked_lost); is_walked_lost = false }
            :: !(map[walk] == walked && IS_OF_OLD(walked))
            fi
        :: stack[walked] != OLD
        fi
    :: d_step { walk == 0 -> walked = 0; walk = ADDRESSES }
        break
    od;
    do
    :: d_step { walk > 0 && segment[walk - 1] != OLD -> walk-- }
    :: d_step { walk > 0 && segment[walk - 1] == OLD -> walk--; segment[walk] = 0; segment_size[walk] = 0 }
    :: walk == 0 -> break
    od
}

inline drop()
{
    d_step {
        assert(!is_dropped);
        assert(!alive[OLD]);
        ending[OLD] = OVER;
        entry = 0; /* rs_contexts_remove */
        generation++;
        is_dropped = true
    }
    forget_all();
    ended = OLD
}

/* With the lock */
inline update_ending()
{
    if
    :: ending[OLD] == OVER -> contexts_lock = false
    :: ending[OLD] != OVER && ends + releases > 0 ->
        alive[OLD] = false;
        d_step { ending[OLD] = (ends > 0 -> SURELY : MAYBE); contexts_lock = false }
    :: ending[OLD] != OVER && ends + releases == 0 ->
        ending[OLD] = NOT;
        d_step { alive[OLD] = true; contexts_lock = false }
    fi
}

inline give_back_ended()
{
    if
    :: d_step { !contexts_lock && ended != 0 -> ended = 0 }
        charged[OLD] = 0 /* rs_account_lose */
    :: !contexts_lock && ended == 0
    fi
}

bool is_over; /* the end */

proctype ender()
{
    byte i;
    bool is_there;

    /* rs_ending_begin, with rs_context_ending_enter */
    d_step {
        !contexts_lock ->
        endings++;
        context_endings++;
#ifndef GENERATION_KEPT
        generation++
#endif
    }
#ifndef ALIVE_AFTER_CALL
    atomic {
#ifdef HOLDS_NOT_AWAITED
        !contexts_lock ->
#else
        !contexts_lock && holds == 0 ->
#endif
        contexts_lock = true
    }
    d_step { ends = IS_SURE; releases = !IS_SURE }
    update_ending();
#endif
    if
    :: IS_ENDED -> driver_end()
    :: else
    fi;
#ifdef ALIVE_AFTER_CALL
    lock();
    d_step { ends = IS_SURE; releases = !IS_SURE }
    update_ending();
#endif
    /* rs_ending_finish */
    if
    :: !IS_SURE -> /* drop_if_ended */
        if
        :: d_step { !contexts_lock && entry == 0 -> is_there = true }
        :: d_step { !contexts_lock && entry != 0 -> i = entry }
            is_there = exists[i] /* is_context_there */
        fi;
        if
        :: !is_there ->
            lock();
            if
            :: entry == i -> drop()
            :: else
            fi;
            d_step { contexts_lock = false; i = 0 }
            give_back_ended()
        :: else
        fi
    :: else
    fi;
    d_step { !contexts_lock -> contexts_lock = true; ends = 0; releases = 0 } /* finish_call */
    if
#ifdef DROPPED_UNSEEN
    :: how == DESTROYED -> drop()
#else
    :: how == DESTROYED && entry == OLD -> drop()
#endif
    :: else
    fi;
    update_ending();
    if
    :: how == DESTROYED -> give_back_ended()
    :: else
    fi;
    /* rs_context_ending_leave */
    d_step { !contexts_lock -> endings--; context_endings--; is_there = false; i = 0; is_over = true }
}

/* ---- a trim ---- */

bool is_trimmed;

#ifdef HELD_WHILE_ENDING
#define CAN_BE_HELD (entry == OLD)
#else
#define CAN_BE_HELD (entry == OLD && context_endings == 0 && alive[OLD])
#endif

proctype trimmer()
{
    byte record;

    if
    :: d_step { !contexts_lock && CAN_BE_HELD -> holds++ } /* rs_context_hold_locked */
        if
        :: d_step { kept[OLD] != 0 -> record = kept[OLD]; kept[OLD] = 0 }
            d_step { map_remove(address[record], record); state[record] = HIDDEN } /* rs_block_hide */
            segment_remove(address[record], OLD);
            d_step { driver_free(address[record], OLD, by_of[record]); charged[OLD]-- }
            d_step { give_record(record) }
        :: has_idle ->
            segment_remove(0, OLD);
            d_step { driver_free(0, OLD, BY_IDLE); charged[OLD]--; has_idle = false }
        :: kept[OLD] == 0 && !has_idle
        fi;
        d_step { !contexts_lock -> holds-- }
    :: !contexts_lock && !CAN_BE_HELD
    fi;
    d_step { record = 0; is_trimmed = true }
}

/* ---- a user's call ---- */

/* Whether the context s serves that is not alive, or has memory at `start`. */
inline serves_at(has_start)
{
    if
    :: d_step { ending[s] == NOT -> ok = true }
#ifdef DOUBT_NOT_ASKED
    :: d_step { ending[s] == MAYBE -> ok = true }
#else
    :: ending[s] == MAYBE -> ok = exists[s] /* is_context_there */
#endif
#ifdef SURELY_FORWARDED
    :: d_step { ending[s] == SURELY || ending[s] == OVER -> ok = false }
#else
    :: ending[s] == SURELY -> ok = has_start && memory_context[start] == s /* is_at */
    :: d_step { ending[s] == OVER -> ok = false }
#endif
    fi
}

/* rs_context_serves, of the context s */
inline serves()
{
    if
    :: d_step { alive[s] -> ok = true }
    :: !alive[s] -> serves_at(false)
    fi
}

#if defined(COMPARED_AFTER_TAKING) || defined(COMPARED_BEFORE_STACK)
#define COMPARED true
#else
#define COMPARED (address[r] == at)
#endif

/* ok: the block is taken, with the record r. */
inline take_checked()
{
    if
    :: d_step { !COMPARED -> ok = false }
    :: COMPARED ->
        if
        :: d_step { state[r] != LIVE -> ok = false }
        :: d_step { state[r] == LIVE -> state[r] = TAKEN }
            if
            :: d_step {
                   address[r] == at ->
                   s = stack[r];
                   ok = true;
                   live--;
                   if
                   :: !reuses -> give_record(r)
                   :: else
                   fi
               }
            :: address[r] != at -> d_step { state[r] = LIVE; ok = false }
            fi
        fi
    fi
}

#ifdef ALIVE_UNREAD
#define SERVES_FAST true
#else
#define SERVES_FAST alive[s]
#endif

/* rs_block_claim */
inline claim()
{
    if
    :: d_step { map[at] == 0 -> ok = false } /* rs_block_lookup */
    :: d_step { map[at] != 0 -> r = map[at] }
#ifdef COMPARED_BEFORE_STACK
        if
        :: d_step { address[r] != at -> ok = false }
        :: address[r] == at ->
#endif
        s = stack[r];
        if
        :: d_step { !SERVES_FAST -> ok = false }
        :: SERVES_FAST -> take_checked()
        fi
#ifdef COMPARED_BEFORE_STACK
        fi
#endif
    fi
}

inline take_doubted()
{
    if
    :: d_step { map[at] == 0 -> ok = false }
    :: d_step { map[at] != 0 -> r = map[at] }
        s = stack[r];
        if
        :: d_step { state[r] != LIVE -> ok = false }
        :: state[r] == LIVE ->
            serves();
            if
            :: ok -> take_checked()
            :: else
            fi
        fi
    fi
}

#define INSIDE(size) (x - start < size)

/* rs_segment_find, of the address x; ok: found, and begins at `start` */
inline find_segment()
{
    start = x;
    do
    :: segment[start] != 0 ->
        d_step { s = segment[start]; is_inside = INSIDE(segment_size[start]) }
        if /* has_memory */
        :: d_step { alive[s] -> ok = is_inside }
            break
        :: !alive[s] ->
            if
            :: !is_inside -> ok = false
#ifdef ENDING_READ_TWICE
            :: is_inside && ending[s] == SURELY -> serves_at(true)
            :: is_inside && ending[s] != SURELY -> serves()
#else
            :: is_inside -> serves_at(true)
#endif
            fi;
            if
            :: ok -> break
            :: !ok && start > 0 -> start--
            :: !ok && start == 0 -> break
            fi
        fi
    :: d_step { segment[start] == 0 && start > 0 -> start-- }
    :: d_step { segment[start] == 0 && start == 0 -> ok = false }
        break
    od
}

#ifdef RECORD_NOT_COMPARED
#define IS_ITS_RECORD true
#else
#define IS_ITS_RECORD (address[r] == start)
#endif

/* find_live, of the address x; ok: found, with the record r, and begins at `start` */
inline find_live()
{
    start = x;
    do
    :: d_step { map[start] != 0 -> r = map[start]; is_inside = INSIDE(map_size[start]) }
        s = stack[r]; /* is_in_service */
        if
        :: d_step { !IS_ITS_RECORD -> ok = false }
        :: IS_ITS_RECORD ->
            if
            :: d_step { alive[s] -> ok = is_inside }
                break
            :: d_step { !alive[s] && !is_inside -> ok = false }
            :: !alive[s] && is_inside -> serves()
            fi
        fi;
        if
        :: ok -> break
        :: !ok && start > 0 -> start--
        :: !ok && start == 0 -> break
        fi
    :: d_step { map[start] == 0 && start > 0 -> start-- }
    :: d_step { map[start] == 0 && start == 0 -> ok = false }
        break
    od;
    if
    :: ok -> ok = state[r] == LIVE
    :: else
    fi
}

#define HAS_HANDLE_OF_OLD (!IS_ENDED || is_same_handle)

#ifdef ID_NOT_COMPARED
#define IS_SAME_ID true
#else
#define IS_SAME_ID exists[OLD]
#endif

/* rs_context_find, of the handle that is current */
inline find_context()
{
    if
    :: entry != OLD -> context = entry
    :: entry == OLD ->
        if
        :: IS_SAME_ID -> context = (ending[OLD] == NOT || ending[OLD] == MAYBE -> OLD : 0)
        :: !IS_SAME_ID -> drop(); context = 0
        fi
    fi
}

/* context: 0 if the driver serves the request */
inline look_up()
{
    if
    :: !HAS_HANDLE_OF_OLD -> context = NEW
    :: d_step { HAS_HANDLE_OF_OLD && cached != 0 && cached_generation == generation -> context = cached }
    :: HAS_HANDLE_OF_OLD && !(cached != 0 && cached_generation == generation) ->
        lock();
        find_context();
        if
        :: context == 0 || ended != 0 ->
            contexts_lock = false;
            give_back_ended();
            lock();
            find_context()
        :: else
        fi;
        d_step {
            if
            :: context == 0 && entry == 0 -> entry = NEW; alive[NEW] = true; context = NEW /* create */
            :: else
            fi;
            if
            :: context != 0 && endings == 0 -> cached = context; cached_generation = generation
            :: else
            fi;
            contexts_lock = false
        }
    fi
}

/* Takes memory from the driver, and enters it as a block with a new record; size 0: there is none. */
inline take_new()
{
    atomic {
        driver_allocate(context, me + 1);
        if
        :: size > 0 ->
            charged[context]++;
            segment[at] = context; /* rs_segment_add */
            segment_size[at] = size;
            r = (!is_used[1] -> 1 : (!is_used[2] -> 2 : (!is_used[3] -> 3 : 4))); /* rs_block_record_take */
            assert(!is_used[r] && state[r] == HIDDEN);
            is_used[r] = true;
            size_of[r] = size;
            by_of[r] = me + 1
        :: else
        fi
    }
    if
    :: size > 0 -> /* enter_new */
        address[r] = at;
        stack[r] = context;
        state[r] = TAKEN;
        d_step { before = map[at]; map[at] = r; map_size[at] = size }
        if
        :: before != 0 -> /* replaced */
            d_step {
                assert(stack[before] == OLD && !exists[OLD]);
#ifndef REPLACED_KEPT
                lose(before, ok);
#endif
                before = 0;
                ok = false
            }
        :: else
        fi
    :: else
    fi
}

inline allocate()
{
    look_up();
    if
    :: context == 0 -> atomic { driver_allocate(MINE, me + 1); has = (size > 0 -> DRIVERS : NOTHING) }
    :: context != 0 ->
        if
        :: d_step { kept[context] != 0 -> r = kept[context]; kept[context] = 0; at = address[r]; size = size_of[r] }
        :: kept[context] == 0 -> take_new()
        fi;
        assert(context == MINE && exists[context]); /* else it is served by a context that has ended */
        d_step {
            if
            :: size > 0 -> live++; state[r] = LIVE; mine = r; has = OURS /* rs_block_publish */
            :: else
            fi
        }
    fi
}

/* cuMemFree */
inline free_ours()
{
    claim();
    if
    :: !ok -> take_doubted()
    :: else
    fi;
    if
    :: ok ->
        assert(r == mine && s == MINE);
        if
        :: d_step { reuses && kept[s] == 0 -> kept[s] = r }
        :: !(reuses && kept[s] == 0) ->
            if
            :: reuses -> d_step { map_remove(at, r); state[r] = HIDDEN } /* rs_block_hide */
            :: else
            fi;
#ifndef SEGMENT_AFTER_FREE
            segment_remove(at, s);
#endif
            d_step { driver_free(at, s, by); charged[s]-- }
#ifdef SEGMENT_AFTER_FREE
            segment_remove(at, s);
#endif
            if
            :: reuses -> d_step { give_record(r) }
            :: else
            fi
        fi;
        has = NOTHING
    :: else ->
        x = at;
        find_segment();
        assert(ok);            /* else the driver gets an address of ours */
        assert(how == REFUSED) /* else the free of a living block is refused */
    fi
}

inline free_drivers()
{
    claim();
    assert(!ok); /* else it is another block */
    take_doubted();
    assert(!ok);
    x = at;
    find_segment();
    assert(!ok); /* else the free is refused */
    d_step { driver_free(at, MINE, me + 1); has = NOTHING }
}

inline look()
{
    if
    :: find_live();
        if
        :: has == OURS && !ok -> assert(how == REFUSED) /* else a living block is not found */
        :: has == OURS && ok -> assert(r == mine && start == at)
        :: has == DRIVERS -> assert(!ok) /* else it is another block */
        fi
    :: find_segment();
        if
        :: has == OURS -> assert(ok && start == at)
        :: has == DRIVERS -> assert(!ok)
        fi
    fi
}

inline forget_locals()
{
    d_step {
        r = 0; s = 0; x = 0; start = 0; ok = false; is_inside = false; context = 0;
        if
        :: has == NOTHING -> at = 0; size = 0; mine = 0; by = 0
        :: else -> by = (has == OURS -> by_of[mine] : me + 1)
        fi
    }
}

byte done;

proctype user(byte me)
{
    byte allocations, at, size, by, mine, r, s, x, start, context, before;
    byte cached, cached_generation;
    mtype has = NOTHING;
    bool ok, is_inside;

    atomic {
        if
        :: IS_ENDED && is_same_handle -> !exists[OLD]; exists[NEW] = true; cached = OLD
        :: else -> cached = MINE
        fi;
        if
        :: !IS_ENDED && me == 0 -> has = OURS; mine = 1; at = 1; size = 1; by = BY_OLD
        :: else
        fi
    }
    do
    :: atomic { has == NOTHING && allocations == 0 -> allocations++ }
        if
        :: allocate()
        :: IS_ENDED && me == 0 -> /* memory of the driver's own that no stack serves */
            atomic { driver_allocate(MINE, me + 1); has = (size > 0 -> DRIVERS : NOTHING) }
        fi;
        forget_locals()
    :: has == OURS -> free_ours(); forget_locals()
    :: has == DRIVERS -> free_drivers(); forget_locals()
    :: atomic {
           has != NOTHING && me == 0 ->
           if
           :: x = at
           :: size == 2 -> x = at + 1
           fi
       }
        look();
        forget_locals()
    :: has == NOTHING && allocations > 0 -> break
    od;
    at = 0;
    d_step { cached = 0; cached_generation = 0; allocations = 0; done++ }
}

/* ---- inside the map: one shard of which two starts, 1 and 2, have the same home ---- */

#define SLOTS 3 /* the last one stays free */
byte sequence;
byte slot_start[SLOTS]; /* 0: the slot is free */
byte slot_size[SLOTS];
byte slot_owner[SLOTS];

/* What the writer does to each start, numbered; an owner is the number of what entered it. */
byte begun[3], finished[3];

inline write_slot(at, which, what)
{
    slot_size[at] = what;
    slot_owner[at] = what;
    slot_start[at] = which
}

inline write_begin(which)
{
    d_step { begun[which]++; sequence++ }
}

inline write_end(which)
{
    d_step { finished[which]++; sequence++ }
}

/* Start 1 is entered, removed, and entered again; start 2 is entered, moves and is replaced. */
proctype writer()
{
    write_begin(1);
    write_slot(0, 1, 1);
    write_end(1);
    write_begin(2);
    write_slot(1, 2, 1);
    write_end(2);
    write_begin(1); /* table_close */
    write_slot(0, 2, slot_owner[1]);
    slot_start[1] = 0;
    write_end(1);
    write_begin(1);
    write_slot(1, 1, 3);
    write_end(1);
    write_begin(2); /* replace_locked */
    write_slot(0, 2, 2);
    write_end(2)
}

/* rs_address_map_find */
proctype reader(byte which)
{
    byte before, first, i, size, owner;
    bool is_found;

    first = finished[which];
    do
#ifdef ODD_SEQUENCE_READ
    :: before = sequence;
#else
    :: atomic { sequence % 2 == 0 -> before = sequence }
#endif
        i = 0;
        do
        :: d_step { slot_start[i] == which -> is_found = true }
            size = slot_size[i];
            owner = slot_owner[i];
            break
        :: d_step { slot_start[i] == 0 || i == SLOTS - 1 -> is_found = false; owner = 0; size = 0 }
            break
        :: d_step { slot_start[i] != 0 && slot_start[i] != which && i < SLOTS - 1 -> i++ }
        od;
#ifdef SEQUENCE_READ_ONCE
        break
#else
        if
        :: sequence == before -> break
        :: sequence != before
        fi
#endif
    od;
    assert(owner == size);
    assert(!is_found || (first <= owner && owner <= begun[which]));
    assert(is_found || first == 0 || (which == 1 && first <= 2 && begun[1] >= 2))
}

inline enter_first(record, start, what, whose)
{
    memory_context[start] = OLD;
    memory_start[start] = start;
    memory_by[start] = whose;
    segment[start] = OLD;
    segment_size[start] = 1;
    charged[OLD]++;
    if
    :: record != 0 ->
        state[record] = what;
        address[record] = start;
        stack[record] = OLD;
        size_of[record] = 1;
        by_of[record] = whose;
        is_used[record] = true;
        map[start] = record;
        map_size[start] = 1
    :: else
    fi
}

/* Gives back what `reuse` has, and looks whether anything is left. */
inline check_left(context)
{
    if
    :: kept[context] != 0 ->
        r = kept[context];
        kept[context] = 0;
        if
        :: exists[context] ->
            segment[address[r]] = 0;
            driver_free(address[r], context, by_of[r]);
            charged[context]--
        :: else
        fi;
        give_record(r)
    :: else
    fi;
    assert(charged[context] == 0)
}

init {
    byte r;

    atomic {
        if
        :: how = DESTROYED
        :: how = DESTROYED; is_same_handle = true
        :: how = REFUSED
        :: how = RELEASED; is_same_handle = true
        :: how = LEFT
        :: how = INSIDE
        fi;
        if
        :: how == INSIDE -> run writer();
            if
            :: run reader(1)
            :: run reader(2)
            fi;
            goto end
        :: else
        fi;
        if
        :: reuses = true
        :: reuses = false
        fi;
        exists[OLD] = true;
        alive[OLD] = true;
        entry = OLD;
        exists[NEW] = !is_same_handle;
        alive[NEW] = !is_same_handle;
        enter_first(1, 1, LIVE, BY_OLD);
        live = 1;
        if
        :: run trimmer();
            done++;
            if
            :: reuses -> enter_first(2, 0, TAKEN, BY_IDLE); kept[OLD] = 2
            :: else -> enter_first(0, 0, HIDDEN, BY_IDLE); has_idle = true
            fi
        :: run user(1);
            is_trimmed = true
        fi;
        run ender();
        run user(0)
    }
    atomic {
        is_over && is_trimmed && done == USERS;
        if
        :: has_idle && exists[OLD] -> segment[0] = 0; driver_free(0, OLD, BY_IDLE); charged[OLD]--
        :: else
        fi;
        check_left(OLD);
        check_left(NEW);
        assert(live == 0);
        assert(map[0] + map[1] + map[2] == 0);
        assert(segment[0] + segment[1] + segment[2] == 0);
        assert(memory_context[0] + memory_context[1] + memory_context[2] == 0);
        assert(is_used[1] + is_used[2] + is_used[3] + is_used[4] == 0)
    };
end:
    skip
}
