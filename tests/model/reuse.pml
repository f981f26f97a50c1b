/* SPDX-License-Identifier: Apache-2.0 */
/* Deferred reuse (src/resource/reuse) as a model for Spin: every order in which the steps of two threads that
 * allocate and free, of the GPU's streams and of a capture can follow each other.  One section under a
 * shard's spinlock or the ordered blocks' lock, one access to an atomic counter and one call of the driver is
 * one step.  The resource's own lock is taken in a step and held over several.  A list goes to the pool in one
 * step, and what the shards have counted is read in one.
 *
 * From deallocation.c it has open_push, ordered_push, rs_reuse_deallocate and after_seal; from epochs.c
 * seal_locked, make_room_for_epoch, retire_locked, take_through, rs_reuse_advance, rs_reuse_give_backlog,
 * rs_reuse_wait_for_first, rs_reuse_wait_for_all and rs_reuse_destroy_epochs; from quarantine.c rs_reuse_gather,
 * rs_reuse_put_back, rs_reuse_has_quarantine, rs_reuse_progress and the ordered blocks; from ready.c
 * rs_reuse_give_ready, rs_reuse_give_kept, give_in_hand and rs_reuse_begin_slow_path; from allocation.c the
 * slow path, make_own_ready and may_try_again; from reuse.c reuse_trim and reuse_end; and from capture.c the
 * gate.
 *
 * A stream has one kernel at a time; a later one begins when that is done.  All blocks have one size, and come
 * from a pool that cannot grow.  Each run is of one of four kinds, which differ in what the threads do:
 *   PLAIN    both threads free and allocate, so that a request may find no block in the pool
 *   ORDERED  both free, also in the order of a stream, and one allocates, also in the order of a stream; a stream
 *            has one slot
 *   CAPTURE  both free while a stream begins and ends a capture, so that seals are refused and frees wait
 *   MERGES   one thread seals four blocks one by one, where there is room for three epochs
 *
 * What is checked: no block becomes ready or is handed out before the work is done that the context was given
 * before its free (if it was freed in the order of a stream, the work of that stream, unless it is handed out
 * on that stream).  No request is refused if at each moment since it began some block was not the program's.  No
 * fence is recorded while a stream captures.  No block is lost: at the end a trim, or the end of the resource,
 * brings each back that the program does not hold.  No thread waits for ever.
 *
 * Left out: drivers without fences, faults, memory that ends with its context, blocks that upstream refuses to
 * take, requests while a stream captures, the rules of when to seal or to wait (here any free may), waits that
 * time out, growth, and the order of queries that only saves time (is_stuck, EXACT_DIVISOR).
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   FENCE_BEFORE_GATHER  a seal records the fence, and then gathers the blocks
 *   SEALED_AFTER_FENCE   the number of a seal of ordered blocks grows after the fence
 *   OLDER_FENCE_KEPT     an epoch that is merged with a younger one keeps its own fence
 *   OLDEST_FENCE_ASKED   when the oldest epoch is done, the next one counts as done, too
 *   STREAM_NOT_COMPARED  an ordered block is handed out on any stream
 *   TAKEN_AFTER_WAIT     a full wait takes the open blocks when the wait has ended
 *   GATE_LEFT_EARLY      the gate is left before the fence is recorded
 *   NOT_PUT_BACK         a seal that is refused forgets its blocks
 *   REPLACED_FORGOTTEN   an ordered block whose slot is needed joins no open list
 *   LEFT_EARLY           blocks have left the quarantine before they are in the pool
 *   GIVING_UNCOUNTED     kept blocks on their way to the pool are not counted
 *   PROGRESS_UNREAD      a request does not look whether blocks moved while it asked
 *   KEPT_IN_NEED         a block is kept although a request is on the slow path */

#define THREADS 2 /* each has its shard */
#define BLOCKS 4  /* a bit each in what is called a mask here */
#define EPOCHS 3
#define STREAMS 2

mtype = { PLAIN, ORDERED, CAPTURE, MERGES };
mtype kind;

/* ---- what the driver and the program know ---- */

byte all;                  /* the blocks that there are */
byte live;                 /* what the program holds */
byte busy;                 /* the streams whose kernel may still run, a bit each */
byte need[BLOCKS];         /* the part of it that was given before the block's free */
byte awaited[THREADS];     /* or before a full wait */
bool is_capturing;         /* the stream 1 is */
bool is_captured = true;   /* no stream will capture */
bool was_full[THREADS];    /* all blocks were live at a moment since the thread's request began */
bool is_ended[THREADS];

/* ---- the resource ---- */

byte lock_owner;           /* of reuse->lock; a thread plus one */
byte pool;                 /* upstream's free blocks */
byte open[THREADS];        /* the open list of each shard */
byte kept[THREADS];        /* what a shard keeps, sorted or not */
byte home[THREADS];        /* the blocks that were allocated through this shard */
byte backlog;
byte epoch_blocks[EPOCHS]; /* oldest first */
byte epoch_fence[EPOCHS];  /* the work that the event waits for */
byte epoch_seal[EPOCHS];
byte epochs;               /* sealed_count */
byte new_fence;            /* that of the epoch that is being sealed */
byte merge_at;
bool is_refused;           /* reuse->refusal is RS_FENCE_CAPTURES */
byte on_slow_path;
byte giving;               /* giving_bytes */

/* The blocks that have entered the quarantine, less those that have left it; and whether a thread would find
 * the counters changed since it has read them.  So counters that only grow add no states. */
byte quarantined;
byte since[THREADS]; /* the blocks that left since a thread that looks for quarantine has read their number */
bool looks[THREADS];
bool has_entered[THREADS] = true, has_left[THREADS] = true, has_given[THREADS] = true;
bool has_retired[THREADS] = true;

/* Blocks freed in the order of a stream. */
byte slot[STREAMS];
byte slot_seal[STREAMS];
byte begun, sealed, ready_seal;

/* The gate of captures. */
byte gate_shared;
bool gate_alone, has_origin;

#define LOWEST(mask) ((mask) & -(mask))
#define COUNT(mask) (((mask) & 1) + ((mask) >> 1 & 1) + ((mask) >> 2 & 1) + ((mask) >> 3 & 1))
#define IS_DONE(i, mask, order) (!((mask) >> (i) & 1) || !(need[i] & ~(order)))

/* The blocks may be used again by anyone, or on the stream `order` (a bit). */
inline check_done(mask, order)
{
    assert(IS_DONE(0, mask, order) && IS_DONE(1, mask, order) && IS_DONE(2, mask, order) &&
           IS_DONE(3, mask, order))
}

/* All following are parts of a step. */

inline count_entered(blocks)
{
    quarantined = quarantined + blocks;
    has_entered[0] = true;
    has_entered[1] = true
}

inline count_left(blocks)
{
    assert(quarantined >= blocks);
    quarantined = quarantined - blocks;
    has_left[0] = true;
    has_left[1] = true;
    since[0] = since[0] + (looks[0] -> blocks : 0);
    since[1] = since[1] + (looks[1] -> blocks : 0)
}

inline hand_out(order)
{
    check_done(one, order);
    assert(!(live & one)); /* else two have it */
    live = live | one;
    mine = mine | one;
    if
    :: live == all -> was_full[0] = true; was_full[1] = true
    :: else
    fi
}

inline note_need(order)
{
    if
    :: one == 1 -> need[0] = busy & (order)
    :: one == 2 -> need[1] = busy & (order)
    :: one == 4 -> need[2] = busy & (order)
    :: one == 8 -> need[3] = busy & (order)
    fi;
    live = live & ~one;
    mine = mine & ~one
}

inline take_from_pool()
{
    d_step {
        one = LOWEST(pool);
        if
        :: one != 0 ->
            pool = pool & ~one;
            home[0] = (me == 0 -> home[0] | one : home[0] & ~one); /* count_live */
            home[1] = (me == 1 -> home[1] | one : home[1] & ~one);
            hand_out(0)
        :: else
        fi
    }
}

inline lock()
{
    atomic { lock_owner == 0 -> lock_owner = me + 1 }
}

inline unlock()
{
    lock_owner = 0
}

/* ---- blocks that are ready ---- */

/* rs_reuse_give_ready: to each shard its own, the rest to the pool. */
#ifdef KEPT_IN_NEED
#define MAY_KEEP true
#else
#define MAY_KEEP (on_slow_path == 0)
#endif

inline bring_back(shard)
{
    if
    :: (batch & home[shard]) == 0 || !MAY_KEEP
    :: d_step {
           (batch & home[shard]) != 0 && MAY_KEEP ->
           check_done(batch & home[shard], 0);
           kept[shard] = kept[shard] | (batch & home[shard]);
           batch = batch & ~home[shard]
       }
    fi
}

inline give_to_pool()
{
    d_step { check_done(batch, 0); pool = pool | batch; batch = 0 }
}

inline give_ready()
{
    if
    :: batch != 0 ->
        size = COUNT(batch);
        bring_back(0);
        bring_back(1);
#ifdef LEFT_EARLY
        d_step { count_left(size); size = 0 }
        give_to_pool()
#else
        give_to_pool();
        d_step { count_left(size); size = 0 }
#endif
    :: else
    fi
}

/* rs_reuse_begin_slow_path and rs_reuse_give_kept. */
#ifdef GIVING_UNCOUNTED
#define GIVING(mask) 0
#else
#define GIVING(mask) COUNT(mask)
#endif

inline begin_slow_path()
{
    on_slow_path++;
    d_step { hand = kept[0]; giving = giving + GIVING(kept[0]); kept[0] = 0 }
    d_step { hand = hand | kept[1]; giving = giving + GIVING(kept[1]); kept[1] = 0 }
    if
    :: hand != 0 -> /* give_in_hand */
        d_step { check_done(hand, 0); pool = pool | hand; some = true }
        d_step { has_given[0] = true; has_given[1] = true }
        d_step { giving = giving - GIVING(hand); hand = 0 }
    :: else
    fi
}

inline end_slow_path()
{
    on_slow_path--
}

/* ---- epochs; the caller holds the lock ---- */

#define IS_OPEN(stream) (slot[stream] != 0 && slot_seal[stream] >= sealed)

/* rs_reuse_gather */
inline gather()
{
    d_step { batch = open[0]; open[0] = 0 }
    d_step { batch = batch | open[1]; open[1] = 0 }
}

/* rs_ordered_begin_seal; number: 0 when no ordered block is open. */
inline begin_seal()
{
    d_step {
        if
        :: IS_OPEN(0) || IS_OPEN(1) -> begun++; number = begun
        :: else -> number = 0
        fi
    }
}

/* rs_fence_record */
inline record_fence()
{
    atomic {
        is_passed = !gate_alone && !has_origin; /* pass */
        gate_shared = gate_shared + (is_passed -> 1 : 0)
    }
    if
    :: is_passed ->
#ifdef GATE_LEFT_EARLY
        gate_shared--;
        d_step { assert(!is_capturing); new_fence = busy }
#else
        d_step { assert(!is_capturing); new_fence = busy }
        gate_shared--
#endif
    :: else
    fi
}

/* make_room_for_epoch: the oldest is not merged, so here it is always the second and the third. */
inline merge()
{
    if
    :: epochs == EPOCHS ->
        epoch_blocks[1] = epoch_blocks[1] | epoch_blocks[2];
        epoch_seal[1] = (epoch_seal[1] > epoch_seal[2] -> epoch_seal[1] : epoch_seal[2]);
#ifndef OLDER_FENCE_KEPT
        epoch_fence[1] = epoch_fence[2];
#endif
        epochs--;
        epoch_blocks[2] = 0;
        epoch_seal[2] = 0;
        epoch_fence[2] = 0
    :: else
    fi
}

inline seal_locked()
{
#ifdef FENCE_BEFORE_GATHER
    record_fence();
    gather();
    begin_seal();
#elif defined(SEALED_AFTER_FENCE)
    gather();
    if
    :: batch != 0 || IS_OPEN(0) || IS_OPEN(1) -> record_fence()
    :: else
    fi;
    begin_seal();
#else
    gather();
    begin_seal();
    if
    :: batch != 0 || number != 0 -> record_fence()
    :: else
    fi;
#endif
    if
    :: d_step {
           (batch != 0 || number != 0) && is_passed ->
           merge();
           epoch_blocks[epochs] = batch;
           epoch_seal[epochs] = number;
           epoch_fence[epochs] = new_fence;
           epochs++;
           sealed = (number == 0 -> sealed : number); /* rs_ordered_end_seal */
           is_refused = false
       }
    :: d_step {
           (batch != 0 || number != 0) && !is_passed ->
#ifndef NOT_PUT_BACK
           open[me] = open[me] | batch; /* rs_reuse_put_back */
#endif
           is_refused = true
       }
    :: d_step { batch == 0 && number == 0 -> skip }
    fi;
    d_step { batch = 0; number = 0; new_fence = 0; is_passed = false }
}

inline seal()
{
    lock();
    seal_locked();
    unlock()
}

/* retire_locked: queries the youngest first, one query a step, and takes through the first that is done.
 * And then take_backlog, with the ordered blocks (rs_ordered_drain). */
inline retire_locked()
{
    query = epochs;
    do
    :: query > 0 && epoch_fence[query - 1] != 0 -> query--
    :: d_step {
           query == 0 || epoch_fence[query - 1] == 0 ->
#ifdef OLDEST_FENCE_ASKED
           query = (query != 0 && query < epochs -> query + 1 : query);
#endif
           has_retired[0] = has_retired[0] || query > 0;
           has_retired[1] = has_retired[1] || query > 0;
           do /* take_through */
           :: query > 0 ->
               batch = batch | epoch_blocks[0];
               ready_seal = (epoch_seal[0] > ready_seal -> epoch_seal[0] : ready_seal);
               epoch_blocks[0] = epoch_blocks[1];
               epoch_blocks[1] = epoch_blocks[2];
               epoch_blocks[2] = 0;
               epoch_seal[0] = epoch_seal[1];
               epoch_seal[1] = epoch_seal[2];
               epoch_seal[2] = 0;
               epoch_fence[0] = epoch_fence[1];
               epoch_fence[1] = epoch_fence[2];
               epoch_fence[2] = 0;
               epochs--;
               query--
           :: else -> break
           od;
           query = 0
       }
        break
    od
}

inline drain(first, end, stream)
{
    if
    :: slot[stream] != 0 && slot_seal[stream] >= first && slot_seal[stream] < end ->
        batch = batch | slot[stream];
        slot[stream] = 0;
        slot_seal[stream] = 0
    :: else
    fi
}

inline take_backlog()
{
    d_step {
        batch = batch | backlog;
        backlog = 0;
        drain(0, ready_seal, 0);
        drain(0, ready_seal, 1);
        ready_seal = 0
    }
}

/* rs_reuse_retire */
inline retire()
{
    lock();
    retire_locked();
    take_backlog();
    some = some || batch != 0;
    unlock();
    give_ready()
}

/* rs_reuse_advance: the lock is only tried.  The epochs that are done go into the backlog, or are given. */
inline advance()
{
    if
    :: atomic { lock_owner == 0 -> lock_owner = me + 1 }
        if
        :: retire_locked();
            if
            :: d_step { backlog = backlog | batch; batch = 0 } /* leave_backlog */
            :: take_backlog()
            fi
        :: skip
        fi;
        taken = batch;
        batch = 0;
        seal_locked();
        d_step { batch = taken; taken = 0 }
        unlock();
        give_ready()
    :: lock_owner != 0
    fi
}

/* rs_sentinel_wait */
inline wait_fully()
{
    awaited[me] = busy;
    awaited[me] == 0
}

inline take_open()
{
    lock();
    gather();
    d_step { drain(sealed, 255, 0); drain(sealed, 255, 1) }
    unlock()
}

inline wait_for_all()
{
#ifdef TAKEN_AFTER_WAIT
    wait_fully();
    take_open();
#else
    take_open();
    wait_fully();
#endif
    give_ready();
    retire()
}

/* ---- an allocation ---- */

/* rs_reuse_progress: the counters one after the other */
inline read_progress()
{
    has_entered[me] = false;
    has_left[me] = false;
    has_given[me] = false
}

/* rs_reuse_has_quarantine; is_nothing: no block is in quarantine or on its way. */
inline look_for_quarantine()
{
    looks[me] = true;
    d_step {
        is_nothing = quarantined + since[me] == 0; /* as many have left as have entered */
        since[me] = 0;
        looks[me] = false
    }
    if
    :: is_nothing -> is_nothing = giving == 0
    :: else
    fi
}

/* make_own_ready, again and again while it is RS_READY_PENDING (wait_for_own); some: RS_READY_SOME. */
inline make_ready()
{
    do
    :: some = false;
        begin_slow_path();
        seal();
        retire();
        has_retired[me] = false;
        do
        :: !some && epochs > 0 -> retire(); some = some || has_retired[me] /* rs_reuse_wait_for_first */
        :: some || epochs == 0 -> break
        od;
        end_slow_path();
        if
        :: some -> break
        :: else ->
            if
            :: epochs == 0 -> /* not rs_reuse_has_sealed */
                look_for_quarantine();
                if
                :: is_nothing -> is_nothing = false; break
                :: else
                fi
            :: else
            fi
        fi
    od
}

/* allocate_on_slow_path, with allocate_at_last */
inline allocate_slowly()
{
    some = false;
    begin_slow_path();
    retire();
    if
    :: !some -> seal(); retire()
    :: else
    fi;
    do
    :: read_progress();
        take_from_pool();
        if
        :: one != 0 -> break
        :: else
        fi;
        make_ready();
        if
        :: some
#ifndef PROGRESS_UNREAD
        :: !some && has_entered[me]
        :: !some && !has_entered[me] ->
            if
            :: has_left[me]
            :: !has_left[me] ->
                if
                :: has_given[me]
                :: else -> break /* refused */
                fi
            fi
#else
        :: else -> break
#endif
        fi
    od;
    end_slow_path();
    d_step {
        some = false;
        has_entered[me] = true;
        has_left[me] = true;
        has_given[me] = true;
        has_retired[me] = true
    }
    assert(one != 0 || was_full[me]) /* else it is refused while a block is free */
}

/* rs_ordered_take */
#ifdef STREAM_NOT_COMPARED
#define OF_STREAM(stream) (1 - (stream))
#else
#define OF_STREAM(stream) (stream)
#endif

inline take_ordered(stream)
{
    d_step {
        one = slot[OF_STREAM(stream)];
        if
        :: one != 0 ->
            slot[OF_STREAM(stream)] = 0;
            slot_seal[OF_STREAM(stream)] = 0;
            hand_out(1 << stream)
        :: else
        fi
    }
    if
    :: one != 0 -> d_step { count_left(1) }
    :: else
    fi
}

inline allocate()
{
    d_step { one = 0; was_full[me] = live == all }
    if
    :: kind == ORDERED ->
        if
        :: take_ordered(0)
        :: take_ordered(1)
        :: skip
        fi
    :: else
    fi;
    if
    :: one == 0 ->
        d_step { /* take_kept */
            one = LOWEST(kept[me]);
            if
            :: one != 0 -> kept[me] = kept[me] & ~one; hand_out(0)
            :: else
            fi
        }
    :: else
    fi;
    if
    :: one == 0 -> take_from_pool()
    :: else
    fi;
    if
    :: one == 0 -> allocate_slowly()
    :: else
    fi;
    d_step { one = 0; was_full[me] = true }
}

/* ---- a free ---- */

/* enter_open */
inline push_open()
{
    d_step { one = LOWEST(mine); note_need(3); count_entered(1); open[me] = open[me] | one; one = 0 }
}

/* ordered_push */
inline push_ordered(stream)
{
    d_step { one = LOWEST(mine); note_need(1 << stream); count_entered(1) }
    d_step { replaced = slot[stream]; slot[stream] = one; slot_seal[stream] = begun; one = 0 }
    if
    :: replaced != 0 ->
#ifdef REPLACED_FORGOTTEN
        replaced = 0
#else
        d_step { open[me] = open[me] | replaced; replaced = 0 } /* enter_open */
#endif
    :: else
    fi
}

/* rs_reuse_give_backlog and rs_reuse_give_upstream */
inline give_backlog()
{
    if
    :: atomic { lock_owner == 0 -> take_backlog() } /* nothing else is done under the lock */
        if
        :: batch != 0 ->
            size = COUNT(batch);
            give_to_pool();
            d_step { count_left(size); size = 0 }
        :: else
        fi
    :: lock_owner != 0
    fi
}

inline free_block()
{
    if
    :: push_open()
    :: kind == ORDERED -> push_ordered(0)
    :: kind == ORDERED -> push_ordered(1)
    fi;
    if
    :: kind != MERGES /* it is not time to seal */
    :: advance();
        if
        :: kind == CAPTURE && is_refused -> wait_for_all() /* after_seal */
        :: true
        fi
    :: backlog != 0 || ready_seal != 0 -> give_backlog() /* is_time_to_seal */
    fi
}

/* ---- the end of the run ---- */

inline trim()
{
    begin_slow_path();
    retire();
    seal();
    do
    :: epochs > 0 -> retire() /* retire_at_once, for as long as it takes */
    :: epochs == 0 -> break
    od;
    end_slow_path();
    assert(on_slow_path == 0)
}

inline end_resource()
{
    begin_slow_path();
    wait_for_all();
    do /* rs_reuse_destroy_epochs */
    :: epochs > 0 ->
        d_step {
            epochs--;
            batch = batch | epoch_blocks[epochs];
            ready_seal = (epoch_seal[epochs] > ready_seal -> epoch_seal[epochs] : ready_seal);
            epoch_blocks[epochs] = 0;
            epoch_seal[epochs] = 0;
            epoch_fence[epochs] = 0
        }
    :: epochs == 0 -> break
    od;
    take_backlog();
    give_ready()
}

/* ---- the processes ---- */

/* A thread launches kernels on a stream of its own, but on both where it is the only one. */
#define ALLOCATIONS (kind == PLAIN || (kind == ORDERED && me == 0) -> 1 : 0)
#define MAY_LAUNCH(stream) \
    (mine != 0 && !(busy >> (stream) & 1) && !(launched >> (stream) & 1) && (kind == MERGES || me == (stream)))

proctype thread(byte me; byte mine)
{
    byte one, batch, size, taken, hand, replaced, number, query, allocations, launched;
    bool some, is_passed, is_nothing;

    do
    :: allocations < ALLOCATIONS -> allocations++; allocate()
    :: d_step { MAY_LAUNCH(0) -> launched = launched | 1; busy = busy | 1 }
    :: d_step { MAY_LAUNCH(1) -> launched = launched | 2; busy = busy | (is_capturing -> 0 : 2) }
    :: mine != 0 -> free_block()
    :: d_step { allocations == ALLOCATIONS && (mine == 0 || kind != MERGES) -> is_ended[me] = true }
        break
    od;
    if
    :: me == 0 ->
        is_ended[1] && is_captured;
        if
        :: trim()
        :: end_resource()
        fi;
        assert((pool | live) == all); /* else a block is lost */
        assert(quarantined == 0 && giving == 0)
    :: else
    fi
}

/* The GPU ends the kernel of a stream. */
inline end_kernel(stream)
{
    busy = busy & ~(1 << stream);
    need[0] = need[0] & ~(1 << stream);
    need[1] = need[1] & ~(1 << stream);
    need[2] = need[2] & ~(1 << stream);
    need[3] = need[3] & ~(1 << stream);
    awaited[0] = awaited[0] & ~(1 << stream);
    awaited[1] = awaited[1] & ~(1 << stream);
    epoch_fence[0] = epoch_fence[0] & ~(1 << stream);
    epoch_fence[1] = epoch_fence[1] & ~(1 << stream);
    epoch_fence[2] = epoch_fence[2] & ~(1 << stream);
    new_fence = new_fence & ~(1 << stream)
}

proctype gpu()
{
end:
    do
    :: d_step { busy & 1 -> end_kernel(0) }
    :: d_step { busy & 2 -> end_kernel(1) }
    od
}

/* rs_capture_begin_enter, the driver's call, rs_capture_begin_leave; and the end, with rs_capture_ended. */
proctype capturer()
{
    atomic { gate_shared == 0 && !gate_alone -> gate_alone = true }
    is_capturing = true;
    d_step { has_origin = true; gate_alone = false }
    is_capturing = false;
    atomic { gate_shared == 0 && !gate_alone -> gate_alone = true }
    d_step { has_origin = false; gate_alone = false; is_captured = true }
}

init {
    atomic {
#ifdef ONLY
        kind = ONLY;
#else
        if
        :: kind = PLAIN
        :: kind = ORDERED
        :: kind = CAPTURE
        :: kind = MERGES
        fi;
#endif
        all = (kind == MERGES -> 15 : 3);
        live = all;
        run gpu();
        if
        :: kind == MERGES -> home[0] = 15; is_ended[1] = true; run thread(0, 15)
        :: else -> home[0] = 1; home[1] = 2; run thread(0, 1); run thread(1, 2)
        fi;
        if
        :: kind == CAPTURE -> is_captured = false; run capturer()
        :: else
        fi
    }
}
