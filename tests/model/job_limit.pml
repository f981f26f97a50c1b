/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of a job (src/shared/job_limit.c) as a model for Spin: every order in which the steps of
 * several processes can follow each other, with deaths between any two of them.  One access to the
 * shared memory is one step; all are sequentially consistent, as they are in the code.
 *
 * Three processes with two places join, take bytes of one device, give them back or keep them, look for
 * members that are gone, and die.  A place is free again when its owner's device has closed, so the third
 * process reuses it.  The two seconds that the code waits (RS_JOB_LIMIT_SETTLE_MS) are the time that a
 * device needs to close.  Steps are merged where no order of them matters: what a dead owner left behind
 * changes by a reaper's hand alone, and freeing begins with a compare-and-swap of the owner.
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   PENDING_ENDS_FIRST   a request is pending no longer before its bytes are taken
 *   TAKEN_READ_FIRST     a sum reads a member's taken bytes before its pending ones
 *   NOTE_OF_ANYBODY      the note of an end does not say whose end it was
 *   NO_SETTLE            a place is freed as soon as its owner is gone
 *   OWNER_FREED_FIRST    a place is free before its bytes are gone */

#define MEMBERS 3
#define PLACES 2
#define TAKES 1 /* that succeed, of each member */
#define LIMIT 3
#define BYTES (me == 1 -> 1 : 2) /* of a request: 1 and 2 fit together, 2 and 2 do not */

#define NOBODY 0 /* an owner is its process's number + 1 */

/* The shared memory. */
byte owner[PLACES];
byte ended[PLACES]; /* whose end is noted */
byte pending[PLACES];
byte taken[PLACES];

/* What the kernel and the driver know. */
bool alive[MEMBERS] = true;
bool closed[MEMBERS]; /* the device has, for this process that is gone */
byte held[MEMBERS];   /* of the device, really */

/* ---- rs_job_limit_reap, by the process number `me` ---- */

#define IS_GONE(word) (word != NOBODY && !alive[word - 1])

/* gone_for_ms: long enough only when this owner's end was noted before. */
inline look_at_end()
{
#ifdef NOTE_OF_ANYBODY
    settled = (ended[i] != NOBODY -> closed[ended[i] - 1] : false);
    ended[i] = (ended[i] == NOBODY -> seen : ended[i]);
#else
    settled = (ended[i] == seen -> closed[seen - 1] : false);
    ended[i] = seen;
#endif
#ifdef NO_SETTLE
    settled = true;
#endif
}

/* Whoever frees the place owns it meanwhile. */
inline free_place()
{
    if
    :: atomic { owner[i] == seen -> owner[i] = me + 1; settled = false; seen = NOBODY }
#ifdef OWNER_FREED_FIRST
        owner[i] = NOBODY;
#endif
        pending[i] = 0;
#ifdef OWNER_FREED_FIRST
        atomic { taken[i] = 0; i++ }
#else
        taken[i] = 0;
        atomic { owner[i] = NOBODY; i++ }
#endif
    :: atomic { owner[i] != seen -> settled = false; seen = NOBODY; i++ }
    fi
}

inline reap()
{
    do
    :: atomic { i < PLACES && !IS_GONE(owner[i]) -> i++ }
    :: atomic { i < PLACES && IS_GONE(owner[i]) -> seen = owner[i] }
        atomic {
            look_at_end();
            if
            :: settled || (!pending[i] && !taken[i]) -> settled = true
            :: else -> seen = NOBODY; i++
            fi
        }
        if
        :: settled -> free_place()
        :: else
        fi
    :: atomic { i == PLACES -> i = 0; break }
    od
}

/* ---- rs_job_limit_join ---- */

inline join()
{
    place = PLACES;
    do
    :: atomic { i < PLACES && owner[i] != NOBODY -> i++ }
    :: atomic { i < PLACES && owner[i] == NOBODY -> owner[i] = me + 1; place = i; i = 0; break }
    :: atomic { i == PLACES -> i = 0; break }
    od
}

/* ---- rs_job_share_announce and rs_job_share_settle ---- */

#ifdef TAKEN_READ_FIRST
#define FIRST taken
#define SECOND pending
#else
#define FIRST pending
#define SECOND taken
#endif

inline take()
{
    pending[place] = pending[place] + BYTES;
    do
    :: atomic { i < PLACES -> sum = sum + FIRST[i] }
        atomic { sum = sum + SECOND[i]; i++ }
    :: atomic { i == PLACES -> fits = sum <= LIMIT; sum = 0; i = 0; break }
    od;
#ifdef PENDING_ENDS_FIRST
    pending[place] = pending[place] - BYTES;
#endif
    if
    :: fits -> taken[place] = taken[place] + BYTES
    :: fits -> fits = false /* the process's own limit refuses */
    :: else
    fi;
#ifndef PENDING_ENDS_FIRST
    pending[place] = pending[place] - BYTES
#endif
}

/* ---- the processes ---- */

proctype member(byte me)
{
    byte place, i, sum, takes, seen;
    bool fits, settled;

    {
        do
        :: join();
            if
            :: place < PLACES -> break
            :: else -> reap()
            fi
        od;
        do
        :: takes < TAKES ->
            take();
            if
            :: atomic {
                   fits ->
                   fits = false;
                   takes++;
                   held[me] = held[me] + BYTES /* the driver's allocation */
               }
                if
                :: held[me] = held[me] - BYTES; /* its free */
                    taken[place] = taken[place] - BYTES
                :: skip
                fi
            :: else -> reap()
            fi
        :: takes == TAKES -> break
        od;
end:
        false /* until it is killed */
    } unless {
        !alive[me]
    }
}

/* Kills, and closes the devices of processes that are gone.  The harm is always done by one that is
 * alive, so member 0 stays; its death too makes 29 million states of 4 million, and none of them fails. */
active proctype kernel()
{
    byte i;

    atomic {
        for (i : 0 .. MEMBERS - 1) {
            run member(i)
        }
        i = 0
    }
end:
    do
    :: atomic { alive[1] -> alive[1] = false }
    :: atomic { !alive[1] && !closed[1] -> held[1] = 0; closed[1] = true }
    :: atomic { alive[2] -> alive[2] = false }
    :: atomic { !alive[2] && !closed[2] -> held[2] = 0; closed[2] = true }
    od
}

/* What holds at every moment. */
#define SUM_HELD (held[0] + held[1] + held[2])
#define SOUND(place) (owner[place] != NOBODY || (!pending[place] && !taken[place]))

active proctype observer()
{
end:
    do
    :: atomic { SUM_HELD > LIMIT -> printf("more than the limit is held\n"); assert(false) }
    :: atomic { !(SOUND(0) && SOUND(1)) -> printf("a free place has bytes\n"); assert(false) }
    od
}
