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
 * The mutex is robust: when its owner is gone it can be had.  Who is stopped with it lets nobody take, but give:
 * any try may find the mutex so.
 *
 * Each switch leaves out one rule, and the model fails with it (tests/model/run):
 *   TAKEN_WITHOUT_MUTEX  a request adds up what all have, and takes its bytes, without the mutex
 *   NO_SETTLE            an entry is freed as soon as its owner is gone
 *   KEPT_UNCOUNTED       what is kept for one is no part of what all have */

#define MEMBERS 3
#define TAKES 1 /* that succeed, of each member */
#define LIMIT 3
#define BYTES (me == 0 -> 1 : 2) /* of a request: 1 and 2 fit together, 2 and 2 do not */

#define NOBODY 0 /* an owner is its process's number + 1 */

/* The shared memory. */
byte owner; /* of the mutex */
byte taken[MEMBERS];
byte kept[MEMBERS];
bool wants[MEMBERS];
bool ended[MEMBERS]; /* it was seen that the owner is gone */
bool freed[MEMBERS]; /* the entry is */

/* What the kernel and the driver know. */
bool alive[MEMBERS] = true;
bool closed[MEMBERS]; /* the device has, for this process that is gone */
byte held[MEMBERS];   /* of the device, really */

/* ---- job_try_lock, job_lock ---- */

#define DEAD (owner != NOBODY && !alive[owner - 1])

/* has: the mutex is had. */
inline lock()
{
    if
    :: atomic { owner == NOBODY || DEAD -> owner = me + 1; has = true }
    :: atomic { owner != NOBODY && !DEAD -> has = false } /* it is stopped, or has its turn */
    fi
}

inline unlock()
{
    atomic { owner = NOBODY; has = false }
}

/* ---- rs_job_share_take: each entry is read in a step of its own ---- */

#ifdef KEPT_UNCOUNTED
#define SUM(i) (freed[i] -> 0 : taken[i])
#else
#define SUM(i) (freed[i] -> 0 : taken[i] + kept[i])
#endif

inline take()
{
#ifdef TAKEN_WITHOUT_MUTEX
    has = true;
#else
    lock();
#endif
    if
    :: has ->
        sum = SUM(0);
        sum = sum + SUM(1);
        sum = sum + SUM(2);
        if
        :: sum - kept[me] + BYTES <= LIMIT ->
            taken[me] = taken[me] + BYTES;
            atomic { kept[me] = (kept[me] < BYTES -> 0 : kept[me] - BYTES); fits = true; wants[me] = false }
        :: else
        fi;
        sum = 0;
#ifdef TAKEN_WITHOUT_MUTEX
        has = false
#else
        unlock()
#endif
    :: else
    fi
}

/* ---- rs_job_share_add of what is given back; `for_others`: what was asked for ---- */

inline keep(bytes)
{
    do
    :: atomic { i < MEMBERS && !(wants[i] && alive[i] && !freed[i] && kept[i] == 0) -> i++ }
    :: atomic { i < MEMBERS && wants[i] && alive[i] && !freed[i] && kept[i] == 0 -> kept[i] = bytes; i = 0; break }
    :: atomic { i == MEMBERS -> i = 0; break }
    od
}

inline give(for_others)
{
    if
    :: for_others -> lock()
    :: else
    fi;
    taken[me] = taken[me] - BYTES;
    if
    :: has ->
        keep(BYTES);
        unlock()
    :: else
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
            kept[n] = 0;
            if
#ifdef NO_SETTLE
            :: true -> freed[n] = true
#else
            :: (ended[n] && closed[n]) || taken[n] == 0 -> freed[n] = true
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
                    :: true -> give(true)
                    :: true -> give(false)
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
                        kept[me] = 0;
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
#define UNCOUNTED(i) (freed[i] -> held[i] > 0 : held[i] > taken[i])

active proctype observer()
{
end:
    do
    :: atomic { SUM_HELD > LIMIT -> printf("more than the limit is held\n"); assert(false) }
    :: atomic { UNCOUNTED(0) || UNCOUNTED(1) || UNCOUNTED(2) -> printf("it is not counted\n"); assert(false) }
    od
}
