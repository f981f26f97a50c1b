/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of a job (src/shared/job_share.c, job_limit.c) as a model for Spin: every order in
 * which the steps of several processes can follow each other, with deaths between any two of them.
 * One access to the shared memory is one step.
 *
 * Three processes join, take bytes of one device, give them back or keep them, ask for what another one gives,
 * look for members that are gone, are stopped, and die.  Each has an entry, which it does not leave: the places
 * of members are no part of this.  The two seconds that the code waits (RS_JOB_LIMIT_SETTLE_MS) are the time
 * that a device needs to close.
 *
 * The mutex is robust: when its owner is gone it can be had, and says so.  Who is stopped with it lets nobody
 * take, but give: any try may find the mutex so.
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   NO_RECOUNT           the owner's death is not looked at
 *   GIVEN_UNCOUNTED      what is given without the mutex changes the total there
 *   LATE_READ_FIRST      late bytes are added up before it is forgotten that there are some
 *   REAPED_BY_DIFFERENCE the entry of who is gone is taken from the total, as it is
 *   NO_SETTLE            an entry is freed as soon as its owner is gone
 *   KEPT_UNCOUNTED       what is kept for one is no part of the total */

#define MEMBERS 3
#define TAKES 1 /* that succeed, of each member */
#define LIMIT 3
#define BYTES (me == 0 -> 1 : 2) /* of a request: 1 and 2 fit together, 2 and 2 do not */

#define NOBODY 0 /* an owner is its process's number + 1 */

/* The shared memory. */
byte owner;        /* of the mutex */
bool inconsistent; /* the mutex: its owner died, and nobody has said that all is well */
bool is_late;
short total;
byte taken[MEMBERS];
short late[MEMBERS];
byte kept[MEMBERS];
bool wants[MEMBERS];
bool ended[MEMBERS]; /* it was seen that the owner is gone */
bool freed[MEMBERS]; /* the entry is */

/* What the kernel and the driver know. */
bool alive[MEMBERS] = true;
bool closed[MEMBERS]; /* the device has, for this process that is gone */
byte held[MEMBERS];   /* of the device, really */
bool unsaid[MEMBERS]; /* it has late bytes, and has not said so yet */

#define SUM(i) (freed[i] -> 0 : taken[i] + late[i] + kept[i])

/* ---- job_make_total: late bytes that come meanwhile say so anew ---- */

inline make_total()
{
#ifdef LATE_READ_FIRST
    sum = SUM(0) + SUM(1) + SUM(2);
    is_late = false;
    atomic { total = sum; sum = 0 }
#else
    is_late = false;
    total = SUM(0) + SUM(1) + SUM(2)
#endif
}

/* ---- job_try_lock, job_lock ---- */

#define DEAD (owner != NOBODY && !alive[owner - 1])

/* has: the mutex is had. */
inline lock()
{
    if
    :: atomic { owner == NOBODY -> owner = me + 1; has = true }
    :: atomic { DEAD -> owner = me + 1; inconsistent = true; has = true }
    :: atomic { owner != NOBODY && !DEAD -> has = false } /* it is stopped, or has its turn */
    fi;
    if
    :: has && inconsistent ->
#ifndef NO_RECOUNT
        make_total();
#endif
        inconsistent = false
    :: else
    fi
}

inline unlock()
{
    atomic { owner = NOBODY; has = false }
}

/* ---- rs_job_share_take ---- */

inline take()
{
    lock();
    if
    :: has ->
        if
        :: is_late -> make_total()
        :: else
        fi;
        if
#ifdef KEPT_UNCOUNTED
        :: total + BYTES <= LIMIT ->
#else
        :: total - kept[me] + BYTES <= LIMIT ->
#endif
            taken[me] = taken[me] + BYTES;
            atomic { sum = (kept[me] < BYTES -> kept[me] : BYTES); kept[me] = kept[me] - sum }
#ifdef KEPT_UNCOUNTED
            sum = 0;
#endif
            atomic { total = total + BYTES - sum; sum = 0; fits = true; wants[me] = false }
        :: else
        fi;
        unlock()
    :: else
    fi
}

/* ---- rs_job_share_add of what is given back; `for_others`: what was asked for ---- */

inline keep(bytes)
{
    do
    :: atomic { i < MEMBERS && !(wants[i] && alive[i] && !freed[i] && kept[i] == 0) -> i++ }
    :: atomic { i < MEMBERS && wants[i] && alive[i] && !freed[i] && kept[i] == 0 -> kept[i] = bytes }
#ifndef KEPT_UNCOUNTED
        total = total + bytes;
#endif
        atomic { i = 0; break }
    :: atomic { i == MEMBERS -> i = 0; break }
    od
}

inline give(for_others)
{
    lock();
    if
    :: has ->
        taken[me] = taken[me] - BYTES;
        total = total - BYTES;
        if
        :: for_others -> keep(BYTES)
        :: else
        fi;
        unlock()
    :: else ->
        atomic { late[me] = late[me] - BYTES; unsaid[me] = true }
#ifdef GIVEN_UNCOUNTED
        total = total - BYTES;
        unsaid[me] = false
#else
        atomic { is_late = true; unsaid[me] = false }
#endif
    fi
}

/* ---- rs_job_limit_reap ---- */

inline reap_one(n)
{
    if
    :: !alive[n] && !freed[n] ->
        lock();
        if
        :: has && !freed[n] ->
#ifdef REAPED_BY_DIFFERENCE
            atomic { total = total - kept[n]; kept[n] = 0 }
#else
            kept[n] = 0;
            make_total();
#endif
#ifdef NO_SETTLE
            ended[n] = true;
            if
            :: true ->
#else
            if
            :: (ended[n] && closed[n]) || taken[n] + late[n] == 0 ->
#endif
                freed[n] = true;
#ifdef REAPED_BY_DIFFERENCE
                atomic { total = total - (taken[n] + late[n] + kept[n]) }
#else
                make_total();
#endif
#ifndef NO_SETTLE
            :: else -> ended[n] = true
#endif
            fi;
            unlock()
        :: has && freed[n] -> unlock()
        :: else
        fi
    :: else
    fi
}

/* ---- the processes ---- */

proctype member(byte me)
{
    byte takes, i;
    short sum;
    bool has, fits, asked;

    {
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
                    if
                    :: give(true)
                    :: give(false)
                    fi
                :: skip
                fi
            :: else ->
                if
                :: atomic { !asked && me != 2 -> asked = true; wants[me] = true }
                :: atomic { wants[me] -> wants[me] = false } /* and gives up: what is kept for it goes when it is old */
                    lock();
                    if
                    :: has ->
                        sum = kept[me];
                        kept[me] = 0;
#ifdef KEPT_UNCOUNTED
                        sum = 0;
#endif
                        atomic { total = total - sum; sum = 0 }
                        unlock()
                    :: else
                    fi
                :: me == 0 -> reap_one(1)
                :: skip /* it tries again */
                fi
            fi
        :: takes == TAKES -> break
        od;
end:
        false /* until it is killed */
    } unless {
        !alive[me]
    }
}

/* Kills, and closes the devices of processes that are gone.  Member 1 dies: the harm is done by
 * one that is alive. */
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
    od
}

/* What holds at every moment. */
#define SUM_HELD (held[0] + held[1] + held[2])
#define UNSAID(i) (unsaid[i] && !freed[i])
#define AT_REST (owner == NOBODY && !inconsistent && !is_late && !UNSAID(0) && !UNSAID(1) && !UNSAID(2))

active proctype observer()
{
end:
    do
    :: atomic { SUM_HELD > LIMIT -> printf("more than the limit is held\n"); assert(false) }
    :: atomic { AT_REST && total != SUM(0) + SUM(1) + SUM(2) -> printf("the total is wrong\n"); assert(false) }
    od
}
